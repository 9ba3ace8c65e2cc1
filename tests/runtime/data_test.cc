// Checks promises of the data sets (training/data.h). The contents of the files arrive in the
// batches, every kind of damage is an InputError that names the file, and nothing is random but by
// the stream's seed.
#include "training/data.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "reprise/model/errors.h"
#include "training/zoo.h"

namespace reprise::runtime {

using training::Batch;
using training::BatchStream;
using training::Dataset;
using training::make_model;
using training::Model;
using training::ModelInfo;
using training::models;
using training::open_dataset;
using training::Split;

namespace {

namespace fs = std::filesystem;
using at::Tensor;

std::string word(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

constexpr int64_t kCount = 10, kRows = 6, kColumns = 5;

uint8_t pixel(int64_t image, int64_t row, int64_t column) {
  return static_cast<uint8_t>(image * 37 + row * 11 + column * 5);
}

std::string image_file() {
  std::string bytes = word(0x803) + word(kCount) + word(kRows) + word(kColumns);
  for (int64_t i = 0; i < kCount; ++i) {
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kColumns; ++c) bytes += static_cast<char>(pixel(i, r, c));
    }
  }
  return bytes;
}

std::string label_file(uint32_t count = kCount) {
  std::string bytes = word(0x801) + word(count);
  for (uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 10);
  return bytes;
}

float normalised(double value) { return static_cast<float>((value / 255 - 0.286) / 0.353); }

Model mlp(int64_t batch, int64_t channels, int64_t height, int64_t width) {
  return make_model({.model = "mlp", .input = {batch, channels, height, width}, .width = 4});
}

class Data : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder = fs::temp_directory_path() / ("reprise-data-" + test + std::to_string(getpid()));
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder / name, std::ios::binary) << bytes;
  }
  void write_gz(const std::string& name, const std::string& bytes) const {
    const gzFile file = gzopen((folder / name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  }
  std::string read(const std::string& name) const {
    std::ifstream in(folder / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write_images() const {
    write("train-images-idx3-ubyte", image_file());
    write("train-labels-idx1-ubyte", label_file());
  }

  // Returns the message with which the folder (or a file in it) is refused.
  std::string refusal(const Model& model, const std::string& file = "",
                      Split split = Split::kTrain) const {
    try {
      open_dataset((file.empty() ? folder : folder / file).string(), split, model);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  }
  void expect_refused(const std::string& name, const std::string& part) const {
    const std::string message = refusal(mlp(2, 1, kRows, kColumns));
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find(name), std::string::npos) << message;
  }

  fs::path folder;
};

TEST_F(Data, PlainAndCompressedFilesArriveNormalised) {
  write_images();
  write_gz("t10k-images-idx3-ubyte.gz", image_file());
  write_gz("t10k-labels-idx1-ubyte.gz", label_file());
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const auto data = open_dataset(folder.string(), split, mlp(2, 3, kRows, kColumns));
    EXPECT_EQ(data->size(), kCount);
    Batch batch = data->allocate();
    const std::vector<int64_t> samples = {7, 2};
    data->write(samples, batch);
    for (int64_t b = 0; b < 2; ++b) {
      EXPECT_EQ(batch.target[b].item<int64_t>(), samples[b]);
      for (int64_t c = 0; c < 3; ++c) {
        for (int64_t y = 0; y < kRows; ++y) {
          for (int64_t x = 0; x < kColumns; ++x) {
            EXPECT_NEAR(batch.input[b][c][y][x].item<float>(), normalised(pixel(samples[b], y, x)),
                        1e-5);
          }
        }
      }
    }
  }
}

TEST_F(Data, ResizesAsTorchDoes) {
  write_images();
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{{13, 9}, {3, 8}}) {
    const auto data = open_dataset(folder.string(), Split::kTrain, mlp(kCount, 1, height, width));
    Batch batch = BatchStream(data, 0, /*shuffle=*/false).next();
    Tensor raw = torch::empty({kCount, 1, kRows, kColumns});
    for (int64_t i = 0; i < raw.numel(); ++i) {
      raw.view(-1)[i] = normalised(static_cast<uint8_t>(image_file()[16 + i]));
    }
    const Tensor expected = at::upsample_bilinear2d(raw, {height, width}, false);
    EXPECT_TRUE(torch::allclose(batch.input, expected, 1e-4, 1e-4));
  }
}

TEST_F(Data, SegmentationMarksTheBrightPixels) {
  write_images();
  const Model model =
      make_model({.model = "unet", .input = {2, 1, 8, 8}, .classes = 11, .width = 8});
  const auto data = open_dataset(folder.string(), Split::kTrain, model);
  const Batch batch = BatchStream(data, 0, false).next();
  const Tensor bright = batch.input.select(1, 0) * 0.353 + 0.286 > 31.99 / 255;
  for (int64_t b = 0; b < 2; ++b) {
    EXPECT_TRUE(torch::equal(batch.target[b], bright[b].to(at::kLong) * (b + 1)));
  }
  const Model few = make_model({.model = "unet", .input = {2, 1, 8, 8}, .classes = 10, .width = 8});
  EXPECT_NE(refusal(few).find("at least 11 classes"), std::string::npos);
}

TEST_F(Data, MissingFilesAreNamed) {
  expect_refused(folder.string(), "apt-get install dataset-fashion-mnist");
  write("train-images-idx3-ubyte", image_file());
  expect_refused(folder.string(), "train-labels-idx1-ubyte");
  EXPECT_THROW(open_dataset("no-such-thing", Split::kTrain, mlp(2, 1, 2, 2)), InputError);
}

TEST_F(Data, DamagedImageFilesAreRefused) {
  const std::string name = "train-images-idx3-ubyte", good = image_file();
  write_images();
  for (const size_t size : {size_t{0}, size_t{3}, size_t{15}, size_t{16}, good.size() - 1}) {
    write(name, good.substr(0, size));
    expect_refused(name, "truncated");
  }
  write(name, good + "x");
  expect_refused(name, "more data");
  write(name, word(0x801) + good.substr(4));
  expect_refused(name, "0x00000801");
  write(name, good.substr(0, 8) + word(0) + good.substr(12));
  expect_refused(name, "rows");
  // A header that claims far more than the file holds must not be believed, and no memory may be
  // taken for it.
  write(name, word(0x803) + word(0xffffffff) + good.substr(8));
  expect_refused(name, "impossible number of images");
  write(name, word(0x803) + word(10'000'000) + word(4096) + word(4096));
  expect_refused(name, "4 GiB");
  write(name, word(0x803) + word(1'000) + word(1024) + word(1024));
  expect_refused(name, "truncated");
}

TEST_F(Data, DamagedCompressedFilesAreRefused) {
  const std::string name = "train-images-idx3-ubyte.gz";
  write("train-labels-idx1-ubyte", label_file());
  write_gz(name, image_file());
  const std::string good = read(name);
  EXPECT_EQ(refusal(mlp(2, 1, kRows, kColumns)), "accepted");
  for (size_t size = 2; size < good.size(); size += 7) {
    write(name, good.substr(0, size));
    EXPECT_NE(refusal(mlp(2, 1, kRows, kColumns)), "accepted") << size;
  }
  write(name, good.substr(0, good.size() - 1));
  expect_refused(name, "truncated");
  std::string flipped = good;
  flipped[good.size() - 6] ^= 1;  // the checksum
  write(name, flipped);
  expect_refused(name, "cannot be read");
}

TEST_F(Data, LabelsMustMatch) {
  write_images();
  write("train-labels-idx1-ubyte", label_file(kCount - 1));
  expect_refused("train-labels-idx1-ubyte", "9 labels for the 10 images");
  write("train-labels-idx1-ubyte", label_file());
  const Model model = make_model({.model = "mlp", .input = {2, 1, 2, 2}, .classes = 5, .width = 4});
  EXPECT_NE(refusal(model).find("at least 10 classes"), std::string::npos);
  EXPECT_NE(refusal(mlp(11, 1, 2, 2)).find("less than one batch"), std::string::npos);
}

Model gpt(int64_t batch, int64_t time, int64_t vocabulary = 256) {
  return make_model({.model = "gpt",
                     .input = {batch, time},
                     .width = 8,
                     .layers = 1,
                     .heads = 1,
                     .vocabulary = vocabulary});
}

TEST_F(Data, TextIsTokensAndTheirSuccessors) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i);
  write("text", text);
  const std::string file = (folder / "text").string();
  const auto train = open_dataset(file, Split::kTrain, gpt(2, 7));
  EXPECT_EQ(train->size(), 179 / 7);
  Batch batch = BatchStream(train, 0, false).next();
  EXPECT_TRUE(torch::equal(batch.input, torch::arange(14).view({2, 7})));
  EXPECT_TRUE(torch::equal(batch.target, torch::arange(1, 15).view({2, 7})));
  const auto test = open_dataset(file, Split::kTest, gpt(1, 7));
  EXPECT_EQ(test->size(), 2);
  EXPECT_EQ(BatchStream(test, 0, false).next().input[0][0].item<int64_t>(), 180);
}

TEST_F(Data, TextThatDoesNotFitIsRefused) {
  write("text", std::string(20, 'a'));
  EXPECT_EQ(refusal(gpt(1, 17), "text"), "accepted");  // 18 bytes for training
  EXPECT_NE(refusal(gpt(1, 18), "text").find("too short"), std::string::npos);
  EXPECT_NE(refusal(gpt(1, 2), "text", Split::kTest).find("too short"), std::string::npos);
  EXPECT_NE(refusal(gpt(1, 4, 97), "text").find("byte 0 has the value 97"), std::string::npos);
  write("text", "");
  EXPECT_NE(refusal(gpt(1, 4), "text").find("too short"), std::string::npos);
  EXPECT_NE(refusal(gpt(1, 4)).find("is a directory"), std::string::npos);
  EXPECT_NE(refusal(mlp(1, 1, 2, 2), "text").find("takes images"), std::string::npos);
  EXPECT_THROW(open_dataset("fashion-mnist", Split::kTrain, gpt(1, 4)), InputError);
}

TEST_F(Data, RanksShareOutTheBatchesOfOneStream) {
  write_images();
  const auto data = open_dataset(folder.string(), Split::kTrain, mlp(5, 1, kRows, kColumns));
  BatchStream alone(data, 5), first(data, 5, true, 0, 2), second(data, 5, true, 1, 2);
  EXPECT_EQ(alone.per_epoch(), 2);
  EXPECT_EQ(first.per_epoch(), 1);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(torch::equal(alone.next().target, first.next().target));
    EXPECT_TRUE(torch::equal(alone.next().target, second.next().target));
  }
  EXPECT_EQ(alone.epoch(), first.epoch());
  EXPECT_THROW(BatchStream(data, 5, true, 0, 3), InputError);
}

TEST_F(Data, StreamsDependOnTheSeedAndThePositionOnly) {
  write_images();
  const auto data = open_dataset(folder.string(), Split::kTrain, mlp(3, 1, kRows, kColumns));
  const Tensor before = at::globalContext().defaultGenerator(at::kCPU).get_state();
  BatchStream a(data, 5), b(data, 5), other(data, 6);
  EXPECT_EQ(a.per_epoch(), 3);
  std::vector<Tensor> targets;
  bool differs = false;
  for (int64_t i = 0; i < 9; ++i) {
    EXPECT_EQ(a.epoch(), i / 3);
    const Batch batch = a.next();
    EXPECT_TRUE(torch::equal(batch.input, b.next().input));
    differs |= !torch::equal(batch.target, other.next().target);
    targets.push_back(batch.target);
  }
  EXPECT_TRUE(differs);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {  // labels are the images' numbers
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 9; ++i) {
      seen.insert(targets[epoch * 3 + i / 3][i % 3].item<int64_t>());
    }
    EXPECT_EQ(seen.size(), 9u);
  }
  EXPECT_FALSE(torch::equal(torch::cat({targets[0], targets[1], targets[2]}),
                            torch::cat({targets[3], targets[4], targets[5]})));
  a.seek(4);
  Batch reuse = data->allocate();
  const void* place = reuse.input.data_ptr();
  a.next(reuse);
  EXPECT_EQ(reuse.input.data_ptr(), place);
  EXPECT_TRUE(torch::equal(reuse.target, targets[4]));
  EXPECT_THROW(a.seek(-1), InputError);
  EXPECT_TRUE(torch::equal(before, at::globalContext().defaultGenerator(at::kCPU).get_state()));
}

TEST_F(Data, BatchesGoOnlyIntoFittingTensors) {
  const auto data = open_dataset("synthetic", Split::kTrain, mlp(2, 1, 3, 4));
  const std::vector<int64_t> samples = {0, 1}, outside = {0, data->size()}, few = {0};
  Batch good = data->allocate();
  EXPECT_NO_THROW(data->write(samples, good));
  EXPECT_THROW(data->write(outside, good), InputError);
  EXPECT_THROW(data->write(few, good), InputError);
  for (Batch bad :
       {Batch{Tensor(), good.target}, Batch{good.input.to(at::kDouble), good.target},
        Batch{good.input.transpose(2, 3), good.target}, Batch{good.input, good.input}}) {
    EXPECT_THROW(data->write(samples, bad), InputError);
  }
}

TEST_F(Data, SyntheticDataFitEveryModel) {
  for (const ModelInfo& info : models()) {
    const Model model = make_model(info.name);
    const int64_t classes = model.task == "text" ? model.config.vocabulary : model.config.classes;
    Tensor first;
    for (const Split split : {Split::kTrain, Split::kTest}) {
      BatchStream stream(open_dataset("synthetic", split, model), 3);
      const Batch batch = stream.next();
      EXPECT_EQ(batch.input.sizes(), model.sample_input().sizes()) << info.name;
      EXPECT_EQ(batch.input.scalar_type(), model.sample_input().scalar_type()) << info.name;
      EXPECT_EQ(batch.target.sizes(), model.sample_target().sizes()) << info.name;
      EXPECT_GE(batch.target.min().item<int64_t>(), 0);
      EXPECT_LT(batch.target.max().item<int64_t>(), classes);
      EXPECT_FALSE(first.defined() && torch::equal(first, batch.input));
      first = batch.input;
      if (model.task != "text") {
        EXPECT_NEAR(batch.input.mean().item<double>(), 0, 0.2) << info.name;
        EXPECT_LT(std::abs(batch.input.var().item<double>() - 1.1), 0.3) << info.name;
      }
    }
  }
}

TEST_F(Data, FashionMnistIsRead) {
  const Model model = make_model("resnet18");
  std::shared_ptr<const Dataset> data;
  try {
    data = open_dataset("fashion-mnist", Split::kTest, model);
  } catch (const InputError& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_EQ(data->size(), 10000);
  const Batch batch = BatchStream(data, 1).next();
  EXPECT_NEAR(batch.input.mean().item<double>(), 0, 0.1);
  EXPECT_NEAR(batch.input.std().item<double>(), 1, 0.1);
  EXPECT_GT(std::get<0>(at::_unique(batch.target)).numel(), 5);
}

}  // namespace
}  // namespace reprise::runtime
