// A libibverbs that plays an RDMA card and a cable within one process, so that tests can break connections at
// any message or transfer and have packets arrive late. Built as libibverbs.so.1; a program that links it
// gets it from dlopen() too.
//
// The card executes the requests of all queue pairs one after another in a thread of its own, and checks
// states, keys, rights, protection domains and receive buffers as a card does. Any thread.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gpupool::testing::played {

// What has become of the request at which the cable is cut. Its sender gets no acknowledgement.
enum class Fate {
  nothing,   // it was not executed
  half,      // half of its bytes were written
  executed,  // it was executed
  late,      // a write is still on its way, until deliver_late(); others: nothing
};

// Cuts the cable at the `requests`th request from now, counted over all queue pairs. Requests then fail, and
// their queue pairs with them, until mend().
void cut_after(uint64_t requests, Fate fate);
bool is_cut();
void mend();
// Lets writes arrive that were on their way when the cable was cut. They change memory if their queue pair
// still accepts packets. Returns how many did.
size_t deliver_late();

// Requests of queue pairs are not executed until release().
void hold();
void release();
// Requests that were executed since the start, without those of Fate.
uint64_t executed();

// The port has a link, or none.
void set_port(bool up);
// The device fails: its users are told, and all calls for it fail until bring_back_device().
void lose_device();
void bring_back_device();

size_t queue_pairs();
size_t regions();
// Receive buffers that are posted, of all domains.
size_t posted_buffers();

}  // namespace gpupool::testing::played
