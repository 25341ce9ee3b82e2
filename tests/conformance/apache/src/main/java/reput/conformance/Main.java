package reput.conformance;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * Opens a directory with Apache RocketMQ and does there what it is told.
 *
 * <p>{@code Main store|broker '{"dir": ...}'}: the first word chooses the store library alone or a whole broker with
 * the official client, the second holds the {@link Settings}. One request a line comes from stdin, as JSON with the
 * verb under {@code do}; each is answered on stdout with any number of lines and a last one that holds {@code end} or
 * {@code error}. The first line says that the directory is open. {@code stop} closes it in order; at the end of stdin
 * without it the process halts as if it had been killed.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream lines = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Settings settings = JSON.parseObject(arguments[1], Settings.class);
        Face face = arguments[0].equals("broker") ? new BrokerFace(settings) : new StoreFace(settings);
        lines.println(JSON.toJSONString(Map.of("end", 0)));

        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line);
            if (request.getString("do").equals("stop")) {
                face.close();
                lines.println(JSON.toJSONString(Map.of("end", 0)));
                System.exit(0);
            }
            lines.println(JSON.toJSONString(answer(face, request, lines)));
        }
        Runtime.getRuntime().halt(1);
    }

    private static Map<String, Object> answer(Face face, JSONObject request, PrintStream lines) {
        int[] count = {0};
        Face.Lines out = line -> {
            lines.println(JSON.toJSONString(line));
            count[0]++;
        };
        try {
            String verb = request.getString("do");
            switch (verb) {
                case "put":
                    face.put(request, out);
                    break;
                case "queues":
                    face.queues(out);
                    break;
                case "read":
                    face.read(request.getString("topic"), request.getIntValue("queueId"), out);
                    break;
                case "by_id":
                    face.byId(request.getString("topic"), request.getList("ids", String.class), out);
                    break;
                case "by_key":
                    face.byKey(request, out);
                    break;
                case "by_time":
                    face.byTime(request, out);
                    break;
                case "committed":
                    face.committed(request, out);
                    break;
                case "commit":
                    face.commit(request);
                    break;
                case "admin":
                    face.admin(request, out);
                    break;
                default:
                    throw new IllegalArgumentException("unknown verb " + verb);
            }
            return Map.of("end", count[0]);
        } catch (Exception error) {
            error.printStackTrace();
            return Map.of("error", error.toString());
        }
    }
}
