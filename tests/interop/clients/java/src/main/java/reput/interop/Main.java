package reput.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * RocketMQ's Java client, driven by lines of JSON: {@code Main ADDRESS}.
 *
 * <p>Each line of stdin is a request with {@code id} and {@code do}: {@code produce}, {@code consume}, {@code stop} or
 * {@code request}. Its answer on stdout bears the same {@code id}, and {@code ok}, {@code error} or {@code lacks}, which
 * names what this version does not offer. Requests are carried out side by side. Received messages are lines with
 * {@code event}. The end of stdin ends the process.
 */
public final class Main {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        Sending sending = new Sending(arguments[0]);
        Receiving receiving = new Receiving(arguments[0], sending);
        ExecutorService threads = Executors.newCachedThreadPool();
        say(Map.of("event", "ready"));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Request request = new Request(RemotingSerializable.fromJson(line, Map.class));
            threads.execute(() -> answer(request, sending, receiving));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(Request request, Sending sending, Receiving receiving) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", request.number("id"));
        try {
            switch (request.text("do")) {
                case "produce":
                    answer.put("ok", sending.produce(request));
                    break;
                case "request":
                    answer.put("ok", sending.request(request));
                    break;
                case "consume":
                    receiving.consume(request);
                    answer.put("ok", true);
                    break;
                case "stop":
                    receiving.stop(request.text("consumer"));
                    answer.put("ok", true);
                    break;
                default:
                    throw new IllegalArgumentException("unknown: " + request.text("do"));
            }
        } catch (NoSuchMethodException lacking) {
            answer.put("lacks", lacking.getMessage());
        } catch (Throwable error) {
            error.printStackTrace();
            answer.put("error", error.toString());
        }
        say(answer);
    }

    /** Writes one line. */
    static void say(Map<String, ?> line) {
        synchronized (OUT) {
            OUT.println(RemotingSerializable.toJson(line, false));
            OUT.flush();
        }
    }
}
