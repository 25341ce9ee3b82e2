package reput.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** A line of JSON; what it lacks is null, 0 or empty. */
final class Request {
    private final Map<String, Object> fields;

    @SuppressWarnings("unchecked")
    Request(Object fields) {
        this.fields = (Map<String, Object>) fields;
    }

    String text(String name) {
        return (String) fields.get(name);
    }

    int number(String name) {
        Object value = fields.get(name);
        return value == null ? 0 : ((Number) value).intValue();
    }

    boolean flag(String name) {
        return Boolean.TRUE.equals(fields.get(name));
    }

    boolean has(String name) {
        return fields.get(name) != null;
    }

    List<Request> list(String name) {
        List<Request> found = new ArrayList<>();
        for (Object item : (List<?>) fields.get(name)) {
            found.add(new Request(item));
        }
        return found;
    }

    @SuppressWarnings("unchecked")
    Map<String, String> texts(String name) {
        Object value = fields.get(name);
        return value == null ? Map.of() : (Map<String, String>) value;
    }
}
