"""Everything between a client and the network: connections, sessions, routes, and the runtime they wait in."""
