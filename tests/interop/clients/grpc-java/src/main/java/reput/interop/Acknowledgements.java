package reput.interop;

import apache.rocketmq.v2.AckMessageEntry;
import apache.rocketmq.v2.AckMessageRequest;
import apache.rocketmq.v2.AckMessageResponse;
import apache.rocketmq.v2.AckMessageResultEntry;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.shaded.io.grpc.CallOptions;
import org.apache.rocketmq.shaded.io.grpc.Channel;
import org.apache.rocketmq.shaded.io.grpc.ClientCall;
import org.apache.rocketmq.shaded.io.grpc.ClientInterceptor;
import org.apache.rocketmq.shaded.io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import org.apache.rocketmq.shaded.io.grpc.ForwardingClientCallListener.SimpleForwardingClientCallListener;
import org.apache.rocketmq.shaded.io.grpc.InternalGlobalInterceptors;
import org.apache.rocketmq.shaded.io.grpc.Metadata;
import org.apache.rocketmq.shaded.io.grpc.MethodDescriptor;
import org.apache.rocketmq.shaded.io.grpc.Status;

/** Reports each request to acknowledge, also those of push consumers, with its answer. */
final class Acknowledgements implements ClientInterceptor {
    private Acknowledgements() {
    }

    /** Begins to report; to be called before the first connection. */
    static void report() {
        InternalGlobalInterceptors.setInterceptorsTracers(List.of(new Acknowledgements()), List.of(), List.of());
    }

    @Override
    public <Q, R> ClientCall<Q, R> interceptCall(
        MethodDescriptor<Q, R> method, CallOptions options, Channel channel) {
        ClientCall<Q, R> call = channel.newCall(method, options);
        if (!"AckMessage".equals(method.getBareMethodName())) {
            return call;
        }
        return new SimpleForwardingClientCall<>(call) {
            private final long askedMs = System.currentTimeMillis();
            private AckMessageRequest request;
            private AckMessageResponse response;

            @Override
            public void sendMessage(Q message) {
                request = (AckMessageRequest) message;
                super.sendMessage(message);
            }

            @Override
            public void start(Listener<R> listener, Metadata headers) {
                super.start(new SimpleForwardingClientCallListener<>(listener) {
                    @Override
                    public void onMessage(R message) {
                        response = (AckMessageResponse) message;
                        super.onMessage(message);
                    }

                    @Override
                    public void onClose(Status status, Metadata trailers) {
                        if (request != null) {
                            say(request, response, status, askedMs);
                        }
                        super.onClose(status, trailers);
                    }
                }, headers);
            }
        };
    }

    private static void say(AckMessageRequest request, AckMessageResponse response, Status status, long askedMs) {
        String ofAll = response == null ? status.toString() : response.getStatus().getCode().name();
        Map<String, String> outcomes = new HashMap<>();
        for (AckMessageEntry entry : request.getEntriesList()) {
            outcomes.put(entry.getReceiptHandle(), ofAll);
        }
        if (response != null) {
            for (AckMessageResultEntry entry : response.getEntriesList()) {
                outcomes.put(entry.getReceiptHandle(), entry.getStatus().getCode().name());
            }
        }
        Main.say(Map.of(
            "event", "acknowledged",
            "group", request.getGroup().getName(),
            "askedMs", askedMs,
            "answeredMs", System.currentTimeMillis(),
            "outcomes", outcomes));
    }
}
