"""interrupted.py POOL: waits for a lease until it is interrupted, and then for a line on stdin."""
import sys

import gpupool

try:
    gpupool.connect(sys.argv[1], gpus=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.readline()
