// The functions of libibverbs, for played_card.h.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "tests/rdma/played_card.h"

// The header defines macros of these names.
#undef ibv_reg_mr
#undef ibv_query_port

using namespace gpupool::testing::played;

namespace {

int post_send(ibv_qp* to, ibv_send_wr* first, ibv_send_wr** bad) {
  const Lock lock(card().mutex);
  auto& pair = *static_cast<Pair*>(to);
  for (const ibv_send_wr* one = first; one; one = one->next) {
    if (card().is_lost || (pair.state != IBV_QPS_RTS && pair.state != IBV_QPS_ERR)) {
      *bad = const_cast<ibv_send_wr*>(one);
      return card().is_lost ? EIO : EINVAL;
    }
    Request request{.id = one->wr_id,
                    .opcode = one->opcode,
                    .is_signaled = (one->send_flags & IBV_SEND_SIGNALED) != 0,
                    .immediate = one->imm_data,
                    .parts = {one->sg_list, one->sg_list + one->num_sge},
                    .is_inline = (one->send_flags & IBV_SEND_INLINE) != 0,
                    .remote = one->wr.rdma.remote_addr,
                    .key = one->wr.rdma.rkey};
    for (const ibv_sge& part : request.parts) {
      if (!request.is_inline) break;
      const auto* const data = reinterpret_cast<const std::byte*>(part.addr);
      request.inlined.insert(request.inlined.end(), data, data + part.length);
    }
    if (pair.state == IBV_QPS_ERR)
      complete(pair, request, IBV_WC_WR_FLUSH_ERR);
    else
      pair.requests.push_back(std::move(request));
  }
  card().changed.notify_all();
  return 0;
}

int poll_cq(ibv_cq* from, int most, ibv_wc* done) {
  const Lock lock(card().mutex);
  auto& queue = *static_cast<Queue*>(from);
  int count = 0;
  for (; count < most && !queue.done.empty(); ++count) {
    done[count] = queue.done.front();
    queue.done.pop_front();
  }
  return count;
}

int req_notify_cq(ibv_cq* queue, int) {
  const Lock lock(card().mutex);
  static_cast<Queue*>(queue)->is_armed = true;
  return 0;
}

int post_srq_recv(ibv_srq* to, ibv_recv_wr* first, ibv_recv_wr**) {
  const Lock lock(card().mutex);
  for (const ibv_recv_wr* one = first; one; one = one->next)
    static_cast<Receives*>(to)->posted.push_back({one->wr_id, *one->sg_list});
  return 0;
}

template <class Made>
Made* unless_lost(Made* made) {
  if (card().is_lost) {
    delete made;
    errno = EIO;
    return nullptr;
  }
  return made;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  if (count) *count = 1;
  auto** const list = new ibv_device*[2];
  list[0] = &card().device;
  list[1] = nullptr;
  return list;
}
void ibv_free_device_list(ibv_device** list) {
  delete[] list;
}
const char* ibv_get_device_name(ibv_device*) {
  return "played0";
}
ibv_context* ibv_open_device(ibv_device* device) {
  const Lock lock(card().mutex);
  auto* const made = unless_lost(new Context{});
  if (!made) return nullptr;
  made->device = device;
  made->async_fd = make_events();
  made->ops.post_send = post_send;
  made->ops.poll_cq = poll_cq;
  made->ops.req_notify_cq = req_notify_cq;
  made->ops.post_srq_recv = post_srq_recv;
  card().contexts.insert(made);
  return made;
}
int ibv_close_device(ibv_context* context) {
  const Lock lock(card().mutex);
  auto* const one = static_cast<Context*>(context);
  card().contexts.erase(one);
  ::close(one->async_fd);
  delete one;
  return 0;
}
int ibv_query_device(ibv_context*, ibv_device_attr* limits) {
  *limits = {};
  limits->max_srq_wr = 4096;
  limits->max_sge = 16;
  limits->max_qp_rd_atom = limits->max_qp_init_rd_atom = 16;
  limits->phys_port_cnt = 1;
  return 0;
}
int ibv_query_port(ibv_context*, uint8_t, _compat_ibv_port_attr* found) {
  const Lock lock(card().mutex);
  if (card().is_lost) return EIO;
  auto& port = *reinterpret_cast<ibv_port_attr*>(found);
  port.state = card().port_is_up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  port.active_mtu = IBV_MTU_4096;
  port.link_layer = IBV_LINK_LAYER_ETHERNET;
  port.gid_tbl_len = 1;
  port.pkey_tbl_len = 1;
  return 0;
}
int ibv_query_gid(ibv_context*, uint8_t, int, ibv_gid* gid) {
  *gid = {};
  gid->raw[15] = 1;
  return 0;
}
int ibv_query_pkey(ibv_context*, uint8_t, int, uint16_t* key) {
  *key = 0xffff;
  return 0;
}
ibv_pd* ibv_alloc_pd(ibv_context* context) {
  const Lock lock(card().mutex);
  auto* const made = unless_lost(new ibv_pd{});
  if (made) made->context = context;
  return made;
}
int ibv_dealloc_pd(ibv_pd* domain) {
  delete domain;
  return 0;
}
ibv_mr* ibv_reg_mr(ibv_pd* domain, void* start, size_t bytes, int rights) {
  const Lock lock(card().mutex);
  auto* const made = unless_lost(new Region{});
  if (!made) return nullptr;
  made->context = domain->context;
  made->pd = domain;
  made->addr = start;
  made->length = bytes;
  made->rights = rights;
  made->lkey = made->rkey = card().next_key += 0x11;
  card().regions[made->rkey] = made;
  return made;
}
int ibv_dereg_mr(ibv_mr* region) {
  const Lock lock(card().mutex);
  card().regions.erase(region->rkey);
  delete static_cast<Region*>(region);
  return 0;
}
ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  const Lock lock(card().mutex);
  auto* const made = unless_lost(new Channel{});
  if (!made) return nullptr;
  made->context = context;
  made->fd = make_events();
  return made;
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  ::close(channel->fd);
  delete static_cast<Channel*>(channel);
  return 0;
}
ibv_cq* ibv_create_cq(ibv_context* context, int, void*, ibv_comp_channel* channel, int) {
  const Lock lock(card().mutex);
  auto* const made = unless_lost(new Queue{});
  if (!made) return nullptr;
  made->context = context;
  made->channel = channel;
  return made;
}
int ibv_destroy_cq(ibv_cq* queue) {
  const Lock lock(card().mutex);
  delete static_cast<Queue*>(queue);
  return 0;
}
int ibv_get_cq_event(ibv_comp_channel* from, ibv_cq** queue, void** owner) {
  auto& channel = *static_cast<Channel*>(from);
  if (!take(channel.fd)) return -1;
  const Lock lock(card().mutex);
  *queue = channel.events.front();
  channel.events.pop_front();
  *owner = nullptr;
  return 0;
}
void ibv_ack_cq_events(ibv_cq*, unsigned) {}
ibv_srq* ibv_create_srq(ibv_pd* domain, ibv_srq_init_attr*) {
  const Lock lock(card().mutex);
  auto* const made = unless_lost(new Receives{});
  if (!made) return nullptr;
  made->context = domain->context;
  made->pd = domain;
  card().receives.insert(made);
  return made;
}
int ibv_destroy_srq(ibv_srq* receives) {
  const Lock lock(card().mutex);
  auto* const one = static_cast<Receives*>(receives);
  card().receives.erase(one);
  delete one;
  return 0;
}
ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* wish) {
  const Lock lock(card().mutex);
  auto* const made = unless_lost(new Pair{});
  if (!made) return nullptr;
  made->context = domain->context;
  made->pd = domain;
  made->send_cq = wish->send_cq;
  made->recv_cq = wish->recv_cq;
  made->srq = wish->srq;
  made->state = IBV_QPS_RESET;
  made->qp_num = card().next_pair++;
  card().pairs[made->qp_num] = made;
  return made;
}
int ibv_modify_qp(ibv_qp* which, ibv_qp_attr* to, int mask) {
  const Lock lock(card().mutex);
  auto& pair = *static_cast<Pair*>(which);
  if (to->qp_state == IBV_QPS_ERR) {
    fail(pair);
    return 0;
  }
  if (card().is_lost) return EIO;
  const std::map<ibv_qp_state, ibv_qp_state> before{
      {IBV_QPS_INIT, IBV_QPS_RESET}, {IBV_QPS_RTR, IBV_QPS_INIT}, {IBV_QPS_RTS, IBV_QPS_RTR}};
  const auto needed = before.find(to->qp_state);
  if (to->qp_state != IBV_QPS_RESET && (needed == before.end() || needed->second != pair.state))
    return EINVAL;
  pair.state = to->qp_state;
  if (mask & IBV_QP_ACCESS_FLAGS) pair.rights = to->qp_access_flags;
  if (mask & IBV_QP_DEST_QPN) pair.peer = to->dest_qp_num;
  return 0;
}
int ibv_destroy_qp(ibv_qp* which) {
  const Lock lock(card().mutex);
  auto* const pair = static_cast<Pair*>(which);
  card().pairs.erase(pair->qp_num);
  delete pair;
  return 0;
}
int ibv_get_async_event(ibv_context* from, ibv_async_event* event) {
  auto& context = *static_cast<Context*>(from);
  if (!take(context.async_fd)) return -1;
  const Lock lock(card().mutex);
  *event = {};
  event->event_type = context.events.front();
  context.events.pop_front();
  return 0;
}
void ibv_ack_async_event(ibv_async_event*) {}
const char* ibv_event_type_str(ibv_event_type) {
  return "a played event";
}
const char* ibv_wc_status_str(ibv_wc_status) {
  return "a played failure";
}

}  // extern "C"
#pragma GCC visibility pop
