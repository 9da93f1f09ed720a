#include "server/poold/admin/metrics.h"

#include "server/poold/admin/dcgm.h"
#include "tests/support/catch.h"

using namespace gpupool;
using namespace gpupool::server;

namespace {

admin::Snapshot snapshot() {
  admin::Snapshot all;
  all.mutable_poold()->set_version("1.2.3");
  all.mutable_poold()->set_ready(true);
  all.mutable_poold()->mutable_migrations()->set_failed(2);
  admin::Gpu& gpu = *all.add_gpus();
  gpu.set_name("a \"GPU\"\\");
  gpu.set_memory_total_bytes(8ull << 30);
  gpu.set_gpu_nanoseconds(1'500'000'000);
  gpu.set_compute_sold_milli(1500);
  admin::Session& session = *all.add_sessions();
  session.set_number(7);
  session.set_tenant("research");
  session.set_calls(42);
  admin::SessionGpu& used = *session.add_gpus();
  used.set_memory_used_bytes(4096);
  used.set_memory_in_host_bytes(1024);
  used.set_throttled_nanoseconds(250'000'000);
  admin::Tenant& tenant = *all.add_tenants();
  tenant.set_name("research");
  tenant.set_configured(true);
  tenant.mutable_quota()->set_memory_bytes(1u << 30);
  tenant.mutable_quota()->set_compute_milli(125);
  tenant.add_memory_used_bytes(4096);
  tenant.add_partition_multiprocessors(32);
  tenant.set_errors(3);
  return all;
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

}  // namespace

TEST_CASE("a snapshot becomes text for Prometheus, in its units") {
  const std::string text = metrics_text(snapshot());
  INFO(text);
  for (const char* line :
       {"gpupool_build_info{version=\"1.2.3\"} 1",
        "gpupool_ready 1",
        "gpupool_migrations_ended_total{result=\"failed\"} 2",
        "gpupool_migrations_ended_total{result=\"lost\"} 0",
        "gpupool_gpu_memory_bytes{gpu=\"0\"} 8589934592",
        "gpupool_gpu_info{gpu=\"0\",name=\"a \\\"GPU\\\"\\\\\",uuid=\"\"} 1",
        "gpupool_gpu_busy_seconds_total{gpu=\"0\"} 1.5",
        "gpupool_gpu_compute_sold_ratio{gpu=\"0\"} 1.5",
        "gpupool_session_calls_total{session=\"7\",tenant=\"research\"} 42",
        "gpupool_session_memory_used_bytes{session=\"7\",tenant=\"research\",gpu=\"0\"} 4096",
        "gpupool_session_memory_in_host_bytes{session=\"7\",tenant=\"research\",gpu=\"0\"} 1024",
        "gpupool_session_throttled_seconds_total{session=\"7\",tenant=\"research\",gpu=\"0\"} 0.25",
        "gpupool_tenant_memory_used_bytes{tenant=\"research\",gpu=\"0\"} 4096",
        "gpupool_tenant_memory_quota_bytes{tenant=\"research\",gpu=\"0\"} 1073741824",
        "gpupool_tenant_partition_multiprocessors{tenant=\"research\",gpu=\"0\"} 32",
        "gpupool_gpu_partitioned_multiprocessors{gpu=\"0\"} 0",
        "gpupool_tenant_compute_share_ratio{tenant=\"research\",gpu=\"0\"} 0.125",
        "gpupool_tenant_errors_total{tenant=\"research\"} 3",
        "# TYPE gpupool_session_calls_total counter",
        "# TYPE gpupool_sessions gauge"}) {
    INFO(line);
    CHECK(has_line(text, line));
  }
}

TEST_CASE("per-GPU shares are exported only for the GPUs of a lease") {
  admin::Snapshot all = snapshot();
  all.add_gpus()->set_index(1);
  all.add_gpus()->set_index(2);
  admin::Tenant& tenant = *all.mutable_tenants(0);
  tenant.add_gpus(0);
  tenant.add_gpus(2);
  admin::GpuQuota& other = *tenant.mutable_quota()->add_gpus();
  other.set_gpu(2);
  other.set_compute_milli(500);
  const std::string text = metrics_text(all);
  INFO(text);
  CHECK(has_line(text, "gpupool_tenant_compute_share_ratio{tenant=\"research\",gpu=\"0\"} 0.125"));
  CHECK(has_line(text, "gpupool_tenant_compute_share_ratio{tenant=\"research\",gpu=\"2\"} 0.5"));
  CHECK(has_line(text, "gpupool_tenant_memory_quota_bytes{tenant=\"research\",gpu=\"0\"} 1073741824"));
  CHECK(text.find("quota_bytes{tenant=\"research\",gpu=\"2\"}") == std::string::npos);  // no limit
  CHECK(text.find("{tenant=\"research\",gpu=\"1\"}") == std::string::npos);
}

TEST_CASE("metrics of a session disappear when it ends") {
  admin::Snapshot all = snapshot();
  all.clear_sessions();
  CHECK(metrics_text(all).find("session=\"7\"") == std::string::npos);
}

namespace {

std::string dcgm_text(const admin::Snapshot& all) {
  MetricsPage page;
  add_dcgm_metrics(all, "host-1", page);
  add_lease_labels(all, page);
  return page.text();
}

admin::Tenant& add_lease(admin::Snapshot& all, const std::string& name, uint32_t gpu) {
  admin::Tenant& tenant = *all.add_tenants();
  tenant.set_name(name);
  tenant.set_leased(true);
  tenant.add_gpus(gpu);
  return tenant;
}

}  // namespace

TEST_CASE("sensors have the names, units and labels of dcgm-exporter") {
  admin::Snapshot all = snapshot();
  admin::Gpu& gpu = *all.mutable_gpus(0);
  gpu.set_name("NVIDIA H200");
  gpu.set_uuid("GPU-1");
  gpu.set_pci_bus_id("0000:01:00.0");
  CHECK(dcgm_text(all).find("DCGM_") == std::string::npos);  // without NVML
  gpu.mutable_sensors()->mutable_sensors()->set_power_milliwatts(71'500);
  gpu.mutable_sensors()->mutable_sensors()->set_energy_millijoules(12'345'678);
  gpu.mutable_sensors()->set_memory_used_bytes(3ull << 30);
  gpu.mutable_sensors()->set_driver_version("580.1");
  add_lease(all, "a/1", 0).add_labels("namespace=ml");
  all.mutable_tenants(1)->add_labels("pod=train-0");
  all.mutable_tenants(1)->add_labels("podium=no");
  const std::string labels =
      "{gpu=\"0\",UUID=\"GPU-1\",pci_bus_id=\"0000:01:00.0\",device=\"nvidia0\",modelName=\"NVIDIA H200\","
      "Hostname=\"host-1\",DCGM_FI_DRIVER_VERSION=\"580.1\"";
  std::string text = dcgm_text(all);
  INFO(text);
  CHECK(has_line(text, "DCGM_FI_DEV_POWER_USAGE" + labels + ",namespace=\"ml\",pod=\"train-0\"} 71.5"));
  CHECK(has_line(text, "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter"));
  CHECK(has_line(
      text, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" + labels + ",namespace=\"ml\",pod=\"train-0\"} 12345678"));
  CHECK(has_line(text, "DCGM_FI_DEV_FB_USED" + labels + ",namespace=\"ml\",pod=\"train-0\"} 3072"));
  CHECK(text.find("DCGM_FI_DEV_GPU_TEMP") == std::string::npos);  // not reported
  CHECK(has_line(text, "gpupool_tenant_labels{tenant=\"a/1\",namespace=\"ml\",pod=\"train-0\"} 1"));
  add_lease(all, "b/2", 0).add_labels("pod=other");  // which of them used it is unknown
  CHECK(has_line(dcgm_text(all), "DCGM_FI_DEV_POWER_USAGE" + labels + "} 71.5"));
}
