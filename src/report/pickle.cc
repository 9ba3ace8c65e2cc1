#include "report/pickle.h"

#include "report/markup.h"
#include "reprise/model/errors.h"

namespace reprise::report {

namespace {

// Opcodes are those of Python's pickletools.py.
constexpr char kProto = '\x80';
constexpr char kStop = '.';
constexpr char kMark = '(';
constexpr char kEmptyDict = '}';
constexpr char kSetItems = 'u';
constexpr char kEmptyList = ']';
constexpr char kAppends = 'e';
constexpr char kBinInt1 = 'K';
constexpr char kBinInt2 = 'M';
constexpr char kBinInt = 'J';
constexpr char kLong1 = '\x8a';
constexpr char kBinUnicode = 'X';
constexpr char kLongBinPut = 'r';
constexpr char kLongBinGet = 'j';

constexpr char kProtocol = 2;
// Python writes batches of this size. The viewer passes each batch as the arguments of one call.
constexpr size_t kBatch = 1000;

}  // namespace

PickleWriter::PickleWriter() { out_ = {kProto, kProtocol}; }

void PickleWriter::little_endian(uint64_t number, size_t bytes) {
  for (size_t b = 0; b < bytes; ++b) out_ += static_cast<char>(number >> (8 * b) & 0xFF);
}

void PickleWriter::integer(int64_t number) {
  const auto bits = static_cast<uint64_t>(number);
  if (number >= 0 && number < 0x100) {
    out_ += kBinInt1;
    little_endian(bits, 1);
  } else if (number >= 0 && number < 0x10000) {
    out_ += kBinInt2;
    little_endian(bits, 2);
  } else if (number == static_cast<int32_t>(number)) {
    out_ += kBinInt;
    little_endian(bits, 4);
  } else {
    out_ += kLong1;
    little_endian(8, 1);
    little_endian(bits, 8);
  }
}

void PickleWriter::text(std::string_view content) {
  if (const auto known = texts_.find(content); known != texts_.end()) return refer(known->second);
  const std::string clean = valid_utf8(content);
  out_ += kBinUnicode;
  little_endian(clean.size(), 4);
  out_ += clean;
  texts_.emplace(content, remember());
}

void PickleWriter::open_dict() {
  out_ += kEmptyDict;
  out_ += kMark;
}

void PickleWriter::close_dict() { out_ += kSetItems; }

void PickleWriter::field(std::string_view name, int64_t number) {
  key(name);
  integer(number);
}

void PickleWriter::field(std::string_view name, std::string_view content) {
  key(name);
  text(content);
}

void PickleWriter::open_list() {
  out_ += kEmptyList;
  out_ += kMark;
  lists_.push_back(0);
}

void PickleWriter::next() {
  if (++lists_.back() < kBatch) return;
  out_ += kAppends;
  out_ += kMark;
  lists_.back() = 0;
}

void PickleWriter::close_list() {
  out_ += kAppends;
  lists_.pop_back();
}

uint32_t PickleWriter::remember() {
  out_ += kLongBinPut;
  little_endian(remembered_, 4);
  return remembered_++;
}

void PickleWriter::refer(uint32_t remembered) {
  out_ += kLongBinGet;
  little_endian(remembered, 4);
}

std::string PickleWriter::take() {
  if (!lists_.empty()) throw InternalError("a pickle ends inside a list");
  out_ += kStop;
  return std::move(out_);
}

}  // namespace reprise::report
