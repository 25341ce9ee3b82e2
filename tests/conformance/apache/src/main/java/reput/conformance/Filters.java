package reput.conformance;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;

/**
 * Asks RocketMQ's filter library about expressions.
 *
 * <p>Each line of stdin is one case, as JSON: an {@code expression}, and {@code messages}, the properties of some
 * messages. Each is answered with a line: {@code refused}, the reason why it does not compile, or {@code values}, for
 * each message true, false, null or the text {@code failed}.
 */
public final class Filters {
    private Filters() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream lines = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = cases.readLine(); line != null; line = cases.readLine()) {
            lines.println(JSON.toJSONString(answer(JSON.parseObject(line)), JSONWriter.Feature.WriteNulls));
        }
        lines.flush();
    }

    private static Map<String, Object> answer(JSONObject request) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(request.getString("expression"));
        } catch (MQFilterException error) {
            Throwable reason = error.getCause() == null ? error : error.getCause();
            return Map.of("refused", String.valueOf(reason.getMessage()));
        }
        List<Object> values = new ArrayList<>();
        for (Object message : request.getJSONArray("messages")) {
            Map<String, String> properties = new HashMap<>();
            ((JSONObject) message).forEach((name, value) -> properties.put(name, (String) value));
            values.add(evaluate(expression, properties));
        }
        return Map.of("values", values);
    }

    /** As ExpressionMessageFilter does, which takes whatever is thrown for a message that does not match. */
    private static Object evaluate(Expression expression, Map<String, String> properties) {
        try {
            return expression.evaluate(new MessageEvaluationContext(properties));
        } catch (Throwable error) {
            return "failed";
        }
    }
}
