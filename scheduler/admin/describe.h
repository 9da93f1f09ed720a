// Formats poold's admin messages as text for pool-admin. Pure functions.
#pragma once
#include <chrono>
#include <string>

#include "common/text/units.h"
#include "protocol/control/admin.pb.h"
#include "protocol/control/quota_kinds.h"

namespace gpupool::admin {

std::string duration_text(std::chrono::milliseconds time);  // "2h 05m"
std::string seconds_text(uint64_t nanoseconds);             // "12.3 s"
// limit_text(), rate_text() and count_text() return "-" for 0, which means unlimited.
std::string limit_text(uint64_t bytes);
std::string rate_text(uint64_t bytes_per_second);  // "1.5 GiB/s"
std::string count_text(uint32_t count);
std::string mode_text(Quota::Mode mode);
std::string limit_text(quota::Unit unit, uint64_t value);  // of a kind of quota

std::string state_text(const Session& session);
// Tables for a line of `width` characters; 0: unlimited.
std::string gpus_text(const google::protobuf::RepeatedPtrField<Gpu>& gpus, size_t width);
std::string sessions_text(const google::protobuf::RepeatedPtrField<Session>& sessions, size_t width);
std::string tenants_text(const google::protobuf::RepeatedPtrField<Tenant>& tenants, size_t width);
std::string quotas_text(const google::protobuf::RepeatedPtrField<Tenant>& tenants, size_t width);
std::string quota_text(const std::string& tenant, const Quota& quota);
std::string health_text(const Poold& poold);

}  // namespace gpupool::admin
