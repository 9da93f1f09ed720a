# Read by ctest in builds with sanitizers. By default, ThreadSanitizer lets each process sleep for a second at its
# end, so that tests would see the workers of ended sessions.
if(NOT DEFINED ENV{TSAN_OPTIONS})
  set(ENV{TSAN_OPTIONS} atexit_sleep_ms=0)
endif()
