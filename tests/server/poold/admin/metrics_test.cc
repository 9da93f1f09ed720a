#include "server/poold/admin/metrics.h"

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
