package reput.conformance;

import io.netty.channel.ChannelHandlerContext;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.netty.NettyRequestProcessor;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.header.namesrv.GetRouteInfoRequestHeader;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;

/** Answers every question for a route with the one broker that there is, as a name server would. */
final class OwnRoute implements NettyRequestProcessor {
    private static final int DEFAULT_QUEUES = 4;

    private final BrokerController controller;
    private final String address;

    OwnRoute(BrokerController controller, String address) {
        this.controller = controller;
        this.address = address;
    }

    @Override
    public RemotingCommand processRequest(ChannelHandlerContext context, RemotingCommand request) throws Exception {
        GetRouteInfoRequestHeader header =
            (GetRouteInfoRequestHeader) request.decodeCommandCustomHeader(GetRouteInfoRequestHeader.class);
        TopicConfig topic = controller.getTopicConfigManager().selectTopicConfig(header.getTopic());
        QueueData queues = new QueueData();
        queues.setBrokerName(controller.getBrokerConfig().getBrokerName());
        queues.setReadQueueNums(topic == null ? DEFAULT_QUEUES : topic.getReadQueueNums());
        queues.setWriteQueueNums(topic == null ? DEFAULT_QUEUES : topic.getWriteQueueNums());
        queues.setPerm(6);
        TopicRouteData route = new TopicRouteData();
        route.setQueueDatas(List.of(queues));
        route.setBrokerDatas(List.of(new BrokerData(controller.getBrokerConfig().getBrokerClusterName(),
            queues.getBrokerName(), new HashMap<>(Map.of(0L, address)))));
        RemotingCommand response = RemotingCommand.createResponseCommand(ResponseCode.SUCCESS, null);
        response.setBody(route.encode());
        return response;
    }

    @Override
    public boolean rejectRequest() {
        return false;
    }
}
