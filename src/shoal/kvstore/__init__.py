"""Parameter servers: KVStore with the words and meaning of MXNet, its servers, and the client that strategies use."""
