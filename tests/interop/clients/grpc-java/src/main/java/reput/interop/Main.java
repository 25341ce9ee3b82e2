package reput.interop;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * RocketMQ's gRPC client for Java, driven by lines of JSON: {@code Main ADDRESS}, where the address is a proxy's.
 *
 * <p>{@code interop/client.py} has the lines. Requests are carried out side by side.
 */
public final class Main {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final Gson GSON = new Gson();

    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        Acknowledgements.report();
        Connection connection = new Connection(arguments[0]);
        Sending sending = new Sending(connection);
        Receiving receiving = new Receiving(connection);
        ExecutorService threads = Executors.newCachedThreadPool();
        say(Map.of("event", "ready"));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject request = GSON.fromJson(line, JsonObject.class);
            threads.execute(() -> answer(request, sending, receiving));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(JsonObject request, Sending sending, Receiving receiving) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", request.get("id"));
        try {
            switch (request.get("do").getAsString()) {
                case "produce":
                    answer.put("ok", sending.produce(request));
                    break;
                case "recall":
                    sending.recall(request);
                    answer.put("ok", true);
                    break;
                case "consume":
                    receiving.consume(request);
                    answer.put("ok", true);
                    break;
                case "stop":
                    receiving.stop(request.get("consumer").getAsString());
                    answer.put("ok", true);
                    break;
                default:
                    throw new IllegalArgumentException("unknown: " + request.get("do"));
            }
        } catch (Throwable error) {
            error.printStackTrace();
            answer.put("error", error.toString());
        }
        say(answer);
    }

    /** Writes one line. */
    static void say(Map<String, ?> line) {
        synchronized (OUT) {
            OUT.println(GSON.toJson(line));
            OUT.flush();
        }
    }
}
