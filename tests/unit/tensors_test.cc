// Tests files of tensors: what is written is read, the format is that of safetensors, and damage is
// noticed wherever it is.
#include "reprise/io/tensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/crc32c.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

class TensorFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "reprise-tensors-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    file_ = folder_ / "some.safetensors";
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Has a tensor of each size of elements, an empty one, and one of a single element.
  static std::vector<TensorBytes> some() {
    return {{"flags", "BOOL", {3}, bytes_of("abc")},
            {"weight", "F32", {2, 1}, bytes_of("12345678")},
            {"empty", "I16", {0, 5}, {}},
            {"count", "I64", {}, bytes_of("ABCDEFGH")}};
  }
  void write(const std::vector<TensorBytes>& tensors = some()) {
    write_tensors(file_, {{"made by", "a test \"with\" quotes"}}, tensors);
  }
  static std::string read(const TensorFile& file, const std::string& name) {
    const TensorEntry* entry = file.table().find(name);
    if (entry == nullptr) return "no such tensor";
    std::string text(static_cast<size_t>(entry->bytes.count()), '\0');
    file.read(*entry, std::as_writable_bytes(std::span(text)));
    return text;
  }
  // Returns the message of the refusal, or nothing.
  std::string refusal() const {
    try {
      TensorFile(file_).verify();
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().file, file_.string());
      return error.what();
    }
    return {};
  }

  fs::path folder_, file_;
};

TEST(Crc32c, HasTheValuesOfTheStandard) {
  EXPECT_EQ(io::crc32c(bytes_of("123456789")), 0xE3069283U);
  EXPECT_EQ(io::crc32c(bytes_of(std::string(32, '\0'))), 0x8A9136AAU);  // RFC 3720, B.4
  EXPECT_EQ(io::crc32c(bytes_of(std::string(32, '\xff'))), 0x62A8AB43U);
  EXPECT_EQ(io::crc32c({}), 0U);
}

TEST(Crc32c, MayBeSummedInPieces) {
  const std::string text = "a text whose length is no multiple of eight!";
  const uint32_t whole = io::crc32c(bytes_of(text));
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const uint32_t first = io::crc32c(bytes_of(text).first(cut));
    EXPECT_EQ(io::crc32c(bytes_of(text).subspan(cut), first), whole) << cut;
  }
}

TEST_F(TensorFiles, AreReadAsTheyWereWritten) {
  write();
  const TensorFile file(file_);
  EXPECT_EQ(file.table().metadata.at("made by"), "a test \"with\" quotes");
  EXPECT_EQ(file.table().tensors.size(), 4U);
  for (const TensorBytes& tensor : some()) {
    const TensorEntry* entry = file.table().find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(entry->type, tensor.type);
    EXPECT_EQ(entry->shape, tensor.shape);
    EXPECT_EQ(read(file, tensor.name),
              std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()));
  }
  EXPECT_EQ(refusal(), "");
}

// The bytes are those that the format's own description asks for.
TEST_F(TensorFiles, HaveTheFormatOfSafetensors) {
  write();
  const std::string text = read_file(file_);
  uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  EXPECT_EQ(length % 8, 0U) << "the tensors are aligned";
  const std::string header = text.substr(8, length);
  EXPECT_EQ(header[0], '{');
  EXPECT_NE(header.find("\"__metadata__\""), std::string::npos);
  EXPECT_EQ(text.substr(8 + length), "ABCDEFGH12345678abc") << "large elements first";
  EXPECT_NE(header.find("\"weight\": {\"dtype\": \"F32\", \"shape\": [2, 1], "
                        "\"data_offsets\": [8, 16]}"),
            std::string::npos)
      << header;
}

// Files of other tools have no checksums. Their header may stand in any order.
TEST_F(TensorFiles, OfOtherToolsAreRead) {
  const std::string header = R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
                             R"("a":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}})";
  std::string text(8, '\0');
  text[0] = static_cast<char>(header.size());
  write_file(file_, text + header + "halfUV");
  const TensorFile file(file_);
  EXPECT_EQ(read(file, "a"), "half");
  EXPECT_EQ(read(file, "b"), "UV");
  EXPECT_NE(refusal().find("no checksums"), std::string::npos) << refusal();
}

TEST_F(TensorFiles, EveryDamagedByteIsNoticed) {
  write();
  const std::string whole = read_file(file_);
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int change : {0x01, 0x20, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ change);
      write_file(file_, damaged);
      // White space between words and behind the header means nothing.
      const bool padding = whole[at] == ' ' || damaged[at] == ' ';
      if (padding) continue;
      EXPECT_NE(refusal(), "") << "byte " << at << " ^ " << change;
    }
  }
}

TEST_F(TensorFiles, CutShortAreRefused) {
  write();
  const std::string whole = read_file(file_);
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file(file_, whole.substr(0, size));
    EXPECT_NE(refusal(), "") << size << " bytes";
  }
  write_file(file_, whole + "x");
  EXPECT_NE(refusal().find("belong to it"), std::string::npos) << refusal();
}

TEST_F(TensorFiles, DamageIsNamed) {
  write();
  std::string text = read_file(file_);
  text.back() = 'X';
  write_file(file_, text);
  EXPECT_NE(refusal().find("is damaged: the bytes of tensor \"flags\""), std::string::npos)
      << refusal();
}

TEST_F(TensorFiles, AReplacedFileIsReadAsItWas) {
  write();
  const TensorFile file(file_);
  write({{"flags", "U8", {1}, bytes_of("z")}});
  EXPECT_EQ(read(file, "weight"), "12345678");
  EXPECT_EQ(read(TensorFile(file_), "flags"), "z");
}

TEST_F(TensorFiles, WhatCouldNotBeReadIsNotWritten) {
  write();
  const std::string before = read_file(file_);
  const std::vector<std::pair<TensorBytes, std::string>> wrong = {
      {{"", "U8", {1}, bytes_of("x")}, "no name"},
      {{"__metadata__", "U8", {1}, bytes_of("x")}, "no tensor can have this name"},
      {{"a", "F33", {1}, bytes_of("x")}, "no type \"F33\""},
      {{"a", "F32", {1}, bytes_of("x")}, "does not have 1 bytes"},
      {{"a", "U8", {-1}, bytes_of("x")}, "does not have 1 bytes"},
      {{"a", "F64", {int64_t{1} << 62, 4}, {}}, "does not have 0 bytes"},
      {{std::string(5000, 'n'), "U8", {1}, bytes_of("x")}, "too long"},
      {{"\xff", "U8", {1}, bytes_of("x")}, "UTF-8"},
  };
  for (const auto& [tensor, words] : wrong) {
    try {
      write({tensor});
      ADD_FAILURE() << words;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(write({{"a", "U8", {1}, bytes_of("x")}, {"a", "U8", {1}, bytes_of("y")}}),
               InputError);
  EXPECT_THROW(write_tensors(file_, {{"long", std::string(2'000'000, 'x')}}, some()), InputError);
  EXPECT_EQ(read_file(file_), before);
}

struct WrongHeader {
  const char* text;
  const char* words;
};

TEST(TensorTables, WrongHeadersAreRefusedWithTheirPlace) {
  const std::vector<WrongHeader> wrong = {
      {R"([])", "object"},
      {R"({"a": {"dtype": "F31", "shape": [], "data_offsets": [0, 4]}})", "unknown type"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", "does not have 4 bytes"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})", "does not begin"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}})", "before the beginning"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}})", "two numbers"},
      {R"({"a": {"dtype": "F32", "shape": [1]}})", "data_offsets"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "more": 1}})",
       "unknown key"},
      {R"({"__metadata__": {"a": 1}})", "string"},
      {R"({"a": {"dtype": "F64", "shape": [4611686018427387904, 4], "data_offsets": [0, 8]}})",
       "does not have 8 bytes"},
      {R"({} x)", ""},
  };
  for (const WrongHeader& each : wrong) {
    SCOPED_TRACE(each.text);
    const std::string text = each.text;
    try {
      parse_tensor_table(text, Bytes(static_cast<int64_t>(text.size()) + 12), "header");
      ADD_FAILURE() << "was read";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(each.words), std::string::npos) << error.what();
      EXPECT_EQ(error.where().file, "header");
      EXPECT_EQ(error.where().line, 1);
    }
  }
}

}  // namespace
}  // namespace reprise
