// Metrics of GPUs under the names and labels of NVIDIA's dcgm-exporter, for dashboards and autoscalers that
// know these. From the host's NVML: without it there are none. poold's thread.
#pragma once
#include "common/http/metrics_page.h"
#include "protocol/control/admin.pb.h"

namespace gpupool::server {

// `host`: the label Hostname.
void add_dcgm_metrics(const admin::Snapshot& snapshot, const std::string& host, MetricsPage& page);
// A metric with the labels namespace, pod and container of each lease that has some, to join others with.
void add_lease_labels(const admin::Snapshot& snapshot, MetricsPage& page);

}  // namespace gpupool::server
