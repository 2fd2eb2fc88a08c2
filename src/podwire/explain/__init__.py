"""Follow a packet, a pod or a Service through what is really on a node: live, from a bundle, or from files."""
