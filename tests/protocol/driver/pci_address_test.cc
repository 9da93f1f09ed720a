#include "protocol/driver/pci_address.h"

#include "tests/support/catch.h"

using namespace gpupool;
using cuda::parse_pci_address;
using cuda::PciAddress;

TEST_CASE("reads the addresses that the driver and NVML write") {
  CHECK(parse_pci_address("0000:01:00.0") == PciAddress{0, 1, 0});
  CHECK(parse_pci_address("00000000:AB:1f.0") == PciAddress{0, 0xab, 0x1f});
  CHECK(parse_pci_address("ffffffff:ff:1f") == PciAddress{0xffffffff, 0xff, 0x1f});
}

TEST_CASE("an address without a domain is in domain 0") {
  CHECK(parse_pci_address("1a:02.0") == PciAddress{0, 0x1a, 2});
  CHECK(parse_pci_address("1a:02") == PciAddress{0, 0x1a, 2});
}

TEST_CASE("rejects text that is not a PCI address") {
  for (const char* const text : {"", ":", "01", "01:", ":01:00", "no bus", "0000:01:", "0000::00", "-1:01:00",
                                 "01 :00", "0x1:02:03"}) {
    INFO(text);
    CHECK_FALSE(parse_pci_address(text));
  }
}

TEST_CASE("rejects a number that exceeds 32 bits") {
  CHECK_FALSE(parse_pci_address("100000000:01:00.0"));
  CHECK_FALSE(parse_pci_address("0000:01:ffffffffffffffffffffffff"));
}
