// Reads of memory that the program changes meanwhile: a round of a migration sends what it finds, and later
// rounds send what has changed. ThreadSanitizer ignores the accesses of a thread while it has one of these
// objects; without ThreadSanitizer they do nothing.
#pragma once

namespace gpupool::worker {

#if defined(GPUPOOL_TSAN)
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

class RacingReads {
 public:
#if defined(GPUPOOL_TSAN)
  RacingReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~RacingReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
#else
  RacingReads() {}
  ~RacingReads() {}
#endif
  RacingReads(const RacingReads&) = delete;
  RacingReads& operator=(const RacingReads&) = delete;
};

}  // namespace gpupool::worker
