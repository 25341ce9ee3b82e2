package reput.interop;

import java.time.Duration;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;

/** How producers and consumers reach the proxy: with TLS if there is {@code INTEROP_CA}, as {@code INTEROP_USER}. */
final class Connection {
    final ClientServiceProvider provider = ClientServiceProvider.loadService();
    final ClientConfiguration configuration;

    Connection(String address) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(address)
            .setRequestTimeout(Duration.ofSeconds(30))
            .enableSsl(System.getenv("INTEROP_CA") != null);
        String user = System.getenv("INTEROP_USER");
        if (user != null) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(user, System.getenv("INTEROP_SECRET")));
        }
        configuration = builder.build();
    }
}
