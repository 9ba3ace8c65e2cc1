// Eight bytes are summed at once, with a table for each of their places.
#include "io/crc32c.h"

#include <array>

namespace reprise::io {
namespace {

constexpr uint32_t kReflected = 0x82F63B78;
using CrcTable = std::array<uint32_t, 256>;

constexpr std::array<CrcTable, 8> make_tables() {
  std::array<CrcTable, 8> tables = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? kReflected : 0);
    tables[0][byte] = sum;
  }
  for (size_t place = 1; place < 8; ++place) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[place - 1][byte];
      tables[place][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr std::array<CrcTable, 8> kTables = make_tables();

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t sum = ~before;
  size_t at = 0;
  const auto byte = [&](size_t i) { return std::to_integer<uint32_t>(bytes[at + i]); };
  for (; at + 8 <= bytes.size(); at += 8) {
    const uint32_t low = sum ^ (byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24);
    sum = kTables[7][low & 0xFF] ^ kTables[6][(low >> 8) & 0xFF] ^ kTables[5][(low >> 16) & 0xFF] ^
          kTables[4][low >> 24] ^ kTables[3][byte(4)] ^ kTables[2][byte(5)] ^ kTables[1][byte(6)] ^
          kTables[0][byte(7)];
  }
  for (; at < bytes.size(); ++at) sum = (sum >> 8) ^ kTables[0][(sum ^ byte(0)) & 0xFF];
  return ~sum;
}

}  // namespace reprise::io
