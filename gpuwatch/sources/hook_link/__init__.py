"""The monitor's end of the hook link: listens for trainers and turns their records into samples.

* The link: `rendezvous` (where both sides meet), `server` (sockets and packets), `source` (what the monitor polls).
* The records of one trainer: `facts` (what it says of itself), `iterators` (what it waited for, loader by loader),
  `steps` (which step that belongs to), `run` (dispatch, checkpoints, and what ends a step).
"""
