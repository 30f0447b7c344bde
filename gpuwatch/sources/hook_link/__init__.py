"""The monitor's end of the hook link: listens for trainers and turns their records into samples."""
