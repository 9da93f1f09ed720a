# shellcheck shell=bash disable=SC2034  # read by scripts/package.sh
component="admin"
summary="administration of gpupool, and files of its other packages"
description="pool-admin shows and changes the state of a GPU host's poold, or of a pool's scheduler. The
package also has the documents, and the shared libraries that several programs of gpupool use;
they are in a folder of gpupool's own, and no other program loads them."

