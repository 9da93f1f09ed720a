# shellcheck shell=bash disable=SC2034  # read by scripts/package.sh
component=scheduler
summary="grants leases of the GPUs of many hosts"
description="pool-scheduler makes one pool of many GPU hosts: programs ask it for GPUs, or parts of them,
wait in its queue, and get leases. pool-sim simulates its placement.

The service pool-scheduler is neither enabled nor started by the installation."
requires=(gpupool-common)
deb_depends=('systemd | systemd-standalone-sysusers | systemd-sysusers')
rpm_requires=('(systemd or systemd-standalone-sysusers)')
