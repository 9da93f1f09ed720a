// libibverbs, loaded with dlopen() when it is first used, because programs must start on machines without it.
// Functions that verbs.h defines inline (ibv_post_send, ibv_poll_cq, ...) use the device's own table and need
// no symbol.
#pragma once
#include <infiniband/verbs.h>

#include "common/result.h"

namespace gpupool::transport::rdma {

#define GPUPOOL_VERBS(VERB)  \
  VERB(get_device_list)      \
  VERB(free_device_list)     \
  VERB(get_device_name)      \
  VERB(open_device)          \
  VERB(close_device)         \
  VERB(query_device)         \
  VERB(query_port)           \
  VERB(query_gid)            \
  VERB(query_pkey)           \
  VERB(alloc_pd)             \
  VERB(dealloc_pd)           \
  VERB(reg_mr)               \
  VERB(dereg_mr)             \
  VERB(create_comp_channel)  \
  VERB(destroy_comp_channel) \
  VERB(create_cq)            \
  VERB(destroy_cq)           \
  VERB(get_cq_event)         \
  VERB(ack_cq_events)        \
  VERB(create_srq)           \
  VERB(destroy_srq)          \
  VERB(create_qp)            \
  VERB(modify_qp)            \
  VERB(destroy_qp)           \
  VERB(get_async_event)      \
  VERB(ack_async_event)      \
  VERB(event_type_str)       \
  VERB(wc_status_str)

struct Verbs {
#define VERB(name) decltype(&::ibv_##name) name = nullptr;
  GPUPOOL_VERBS(VERB)
#undef VERB
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr = nullptr;  // null before rdma-core 34
};

// Makes an error of a verb that failed with this errno.
Error verb_failure(const char* doing, int error);

// Any thread. ErrorCode::unavailable: the library is not installed or too old.
Result<const Verbs*> load_verbs();

}  // namespace gpupool::transport::rdma
