// A library with the symbol by which a worker recognizes gpupool's client library, which it must reject as a
// device library.
extern "C" __attribute__((visibility("default"))) const char gpupool_client_version[] = "0";
