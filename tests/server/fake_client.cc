// What the worker must not take for a device library: gpupool's own client library has this symbol.
extern "C" __attribute__((visibility("default"))) const char gpupool_client_version[] = "0";
