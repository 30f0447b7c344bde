"""Raw records to samples: pure state machines, so that what a step means can be mended without the trainer."""
