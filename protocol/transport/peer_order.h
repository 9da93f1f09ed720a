// Tells ThreadSanitizer about order that goes through the peer's process, which it cannot see: everything a
// thread did before it sent bytes happens before whatever another thread does after it received the peer's
// answer, on any connection. Without ThreadSanitizer these functions do nothing.
#pragma once

namespace gpupool::transport {

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
inline char all_peers;
inline void tsan_release_to_peers() {
  __tsan_release(&all_peers);
}
inline void tsan_acquire_from_peers() {
  __tsan_acquire(&all_peers);
}
#else
inline void tsan_release_to_peers() {}
inline void tsan_acquire_from_peers() {}
#endif

}  // namespace gpupool::transport
