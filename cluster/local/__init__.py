"""Jobs as processes of this machine: the same manifest, without a cluster."""
