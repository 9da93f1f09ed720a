// The distribution's gRPC, Abseil, libraries used by gRPC, and spdlog are built without ThreadSanitizer,
// which therefore does not see their synchronization. These suppressions make it ignore libc calls from them.
// Each pattern must match one library only.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libgpr.so\n"
         "called_from_lib:libssl.so\n"
         "called_from_lib:libabsl_synchronization.so\n"
         "called_from_lib:libabsl_graphcycles_internal.so\n"
         "called_from_lib:libabsl_time.so\n"
         "called_from_lib:libabsl_cord.so\n"
         "called_from_lib:libabsl_cord_internal.so\n"
         "called_from_lib:libabsl_cordz_info.so\n"
         "called_from_lib:libabsl_strings.so\n"
         "race:libgrpc.so\n"
         "race:libgrpc++.so\n"
         "race:libgpr.so\n"
         "race:libabsl_\n"
         "race:libspdlog.so\n"
         "race:libupb.so\n"
         "race:libcrypto.so\n"
         "race:libssl.so\n"
         "race:grpc::\n"
         "race:grpc_core::\n"
         "thread:libgpr.so\n";  // ended but not joined when a program ends
}

// Connections that gRPC still closes in the background when a program ends. Its frames have no frame
// pointers, so functions cannot be named.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:libgrpc.so\n";
}
