#include "training/data.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>

#include "reprise/model/errors.h"
#include "training/data_files.h"
#include "training/zoo.h"

namespace reprise::training {
namespace {

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) is one good hash of one number. It serves for seeds,
// and for synthetic values that depend only on their place.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

int64_t product(std::span<const int64_t> extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

int64_t product_after_first(const std::vector<int64_t>& shape) {
  return product(std::span(shape).subspan(1));
}

// Returns the place of sample number `position` in a tensor of `T`.
template <class T>
T* sample_data(at::Tensor& tensor, int64_t position, const std::vector<int64_t>& shape) {
  return tensor.mutable_data_ptr<T>() + position * product_after_first(shape);
}

// A Tap is a linear interpolation along one axis: output i is (1 - weight) * in[low] + weight *
// in[high].
struct Tap {
  int64_t low, high;
  float weight;
};

std::vector<Tap> resize_taps(int64_t from, int64_t to) {
  std::vector<Tap> taps;
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  for (int64_t i = 0; i < to; ++i) {
    const double center = std::max(0.0, (static_cast<double>(i) + 0.5) * scale - 0.5);
    const int64_t low = std::min(static_cast<int64_t>(center), from - 1);
    const int64_t high = std::min(low + 1, from - 1);
    taps.push_back({low, high, static_cast<float>(center - static_cast<double>(low))});
  }
  return taps;
}

class ImageDataset : public Dataset {
 public:
  ImageDataset(std::string name, files::Images images, const Model& model)
      : Dataset(model),
        name_(std::move(name)),
        images_(std::move(images)),
        segmentation_(model.task == "segmentation") {
    // {batch, channels, height, width} or {batch, time = rows, features = columns}.
    const auto& shape = input_shape();
    channels_ = shape.size() == 4 ? shape[1] : 1;
    rows_ = resize_taps(images_.rows, shape[shape.size() - 2]);
    columns_ = resize_taps(images_.columns, shape.back());
    const int64_t largest = *std::max_element(images_.labels.begin(), images_.labels.end());
    const int64_t needed = largest + (segmentation_ ? 2 : 1);
    if (needed > model.config.classes) {
      throw InputError(name_ + " needs a model of at least " + std::to_string(needed) +
                       " classes; this one has " + std::to_string(model.config.classes));
    }
  }

  std::string description() const override {
    std::string text = name_ + ", " + std::to_string(images_.count) + " images";
    const int64_t height = static_cast<int64_t>(rows_.size());
    const int64_t width = static_cast<int64_t>(columns_.size());
    if (height != images_.rows || width != images_.columns) {
      text += ", resized to " + std::to_string(height) + "x" + std::to_string(width);
    }
    return text;
  }
  int64_t size() const override { return images_.count; }

 protected:
  void write_sample(int64_t sample, int64_t position, Batch& batch) const override {
    const uint8_t* image = images_.pixels.data() + sample * images_.rows * images_.columns;
    const int64_t label = images_.labels[sample];
    float* out = sample_data<float>(batch.input, position, input_shape());
    int64_t* target = sample_data<int64_t>(batch.target, position, target_shape());
    if (!segmentation_) *target = label;
    const int64_t pixels = static_cast<int64_t>(rows_.size() * columns_.size());
    int64_t pixel = 0;
    for (const Tap& row : rows_) {
      const uint8_t* low = image + row.low * images_.columns;
      const uint8_t* high = image + row.high * images_.columns;
      for (const Tap& column : columns_) {
        const float upper = blend(low, column), lower = blend(high, column);
        const float value = upper + row.weight * (lower - upper);
        out[pixel] = (value / 255.0f - 0.286f) / 0.353f;
        if (segmentation_) target[pixel] = value >= 32.0f ? label + 1 : 0;
        ++pixel;
      }
    }
    for (int64_t c = 1; c < channels_; ++c) std::copy_n(out, pixels, out + c * pixels);
  }

 private:
  static float blend(const uint8_t* row, const Tap& tap) {
    const float low = row[tap.low];
    return low + tap.weight * (static_cast<float>(row[tap.high]) - low);
  }

  std::string name_;
  files::Images images_;
  bool segmentation_;
  int64_t channels_ = 1;
  std::vector<Tap> rows_, columns_;
};

class TextDataset : public Dataset {
 public:
  TextDataset(std::string file, Split split, const Model& model)
      : Dataset(model), file_(std::move(file)), time_(input_shape()[1]) {
    bytes_ = files::read_text(file_);
    const int64_t vocabulary = model.config.vocabulary;
    for (size_t i = 0; vocabulary < 256 && i < bytes_.size(); ++i) {
      if (bytes_[i] < vocabulary) continue;
      fail("byte " + std::to_string(i) + " has the value " + std::to_string(bytes_[i]) +
           ", the model's vocabulary only " + std::to_string(vocabulary) + " tokens");
    }
    const auto cut =
        bytes_.begin() + static_cast<std::ptrdiff_t>(bytes_.size() - bytes_.size() / 10);
    const bool train = split == Split::kTrain;
    if (train) {
      bytes_.erase(cut, bytes_.end());
    } else {
      bytes_.erase(bytes_.begin(), cut);
    }
    const int64_t needed = batch_size() * time_ + 1;
    const int64_t there = static_cast<int64_t>(bytes_.size());
    if (there < needed) {
      fail("is too short: its " +
           std::string(train ? "first 90 %, for training," : "last 10 %, for tests,") + " are " +
           std::to_string(there) + " bytes, and a batch of " + std::to_string(batch_size()) +
           " sequences of " + std::to_string(time_) + " tokens takes " + std::to_string(needed) +
           "; use a smaller batch or a longer text");
    }
  }

  std::string description() const override {
    return file_ + ", " + std::to_string(size()) + " sequences of " + std::to_string(time_) +
           " bytes";
  }
  int64_t size() const override { return (static_cast<int64_t>(bytes_.size()) - 1) / time_; }

 protected:
  void write_sample(int64_t sample, int64_t position, Batch& batch) const override {
    const uint8_t* text = bytes_.data() + sample * time_;
    std::copy_n(text, time_, sample_data<int64_t>(batch.input, position, input_shape()));
    std::copy_n(text + 1, time_, sample_data<int64_t>(batch.target, position, target_shape()));
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw InputError(message, {.file = file_, .pointer = "", .line = 0});
  }

  std::string file_;
  int64_t time_;
  std::vector<uint8_t> bytes_;
};

// The data are uniform noise of variance 1 with something to learn: a fixed pattern of every class
// (images, sequences), the sign and size of the pixel (segmentation), or the successor of every
// token (text).
class SyntheticDataset : public Dataset {
 public:
  SyntheticDataset(Split split, const Model& model)
      : Dataset(model),
        task_(model.task),
        classes_(static_cast<uint64_t>(model.task == "text" ? model.config.vocabulary
                                                            : model.config.classes)),
        batches_(split == Split::kTrain ? 64 : 8),
        seed_(split == Split::kTrain ? 1 : 2) {}

  std::string description() const override {
    return "synthetic, " + std::to_string(size()) + " samples";
  }
  int64_t size() const override { return batches_ * batch_size(); }

 protected:
  void write_sample(int64_t sample, int64_t position, Batch& batch) const override {
    const uint64_t seed = mix(seed_ ^ mix(static_cast<uint64_t>(sample)));
    int64_t* target = sample_data<int64_t>(batch.target, position, target_shape());
    if (task_ == "text") {
      write_tokens(seed, sample_data<int64_t>(batch.input, position, input_shape()), target);
      return;
    }
    float* out = sample_data<float>(batch.input, position, input_shape());
    const int64_t count = product_after_first(input_shape());
    const bool segmentation = task_ == "segmentation";
    const uint64_t label = mix(seed) % classes_;
    if (!segmentation) *target = static_cast<int64_t>(label);
    const int64_t pixels = segmentation ? product_after_first(target_shape()) : 0;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t place = static_cast<uint64_t>(i);
      const double uniform = unit(mix(seed + 2 * place + 1));
      out[i] = static_cast<float>((2 * uniform - 1) * std::sqrt(3.0));
      if (i < pixels) {
        target[i] = static_cast<int64_t>(uniform * static_cast<double>(classes_));
      } else if (!segmentation) {
        out[i] += mix(mix(label) + place) & 1 ? 0.5f : -0.5f;
      }
    }
  }

 private:
  static double unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

  // Three of four tokens are the fixed successor of the token before them. The others are random.
  void write_tokens(uint64_t seed, int64_t* input, int64_t* target) const {
    uint64_t token = mix(seed) % classes_;
    for (int64_t i = 0; i < input_shape()[1]; ++i) {
      input[i] = static_cast<int64_t>(token);
      const uint64_t random = mix(seed + 2 * static_cast<uint64_t>(i) + 1);
      token = (random & 3 ? mix(token) : random >> 2) % classes_;
      target[i] = static_cast<int64_t>(token);
    }
  }

  std::string task_;
  uint64_t classes_;
  int64_t batches_;
  uint64_t seed_;
};

std::vector<int64_t> target_shape_of(const Model& model) {
  const auto& input = model.config.input;
  if (model.task == "text") return input;
  if (model.task == "segmentation") return {input[0], input[2], input[3]};
  return {input[0]};
}

void check_tensor(const at::Tensor& tensor, const std::vector<int64_t>& shape, at::ScalarType type,
                  const char* what) {
  if (tensor.defined() && tensor.sizes() == at::IntArrayRef(shape) &&
      tensor.scalar_type() == type && tensor.is_contiguous() && tensor.device().is_cpu()) {
    return;
  }
  throw InputError(std::string("the ") + what +
                   " to write a batch into must be a contiguous CPU tensor of the batch's shape "
                   "and type, as Dataset::allocate() makes them");
}

// Returns a number below `bound`, every one equally likely. The distributions of the standard
// library may differ from one implementation to the next.
uint64_t below(std::mt19937_64& random, uint64_t bound) {
  const uint64_t unfair = (0 - bound) % bound;  // 2^64 mod bound
  uint64_t draw = random();
  while (draw < unfair) draw = random();
  return draw % bound;
}

std::shared_ptr<const Dataset> open_source(const std::string& source, Split split,
                                           const Model& model) {
  if (source == "synthetic") return std::make_shared<SyntheticDataset>(split, model);
  const bool named = source == "fashion-mnist";
  std::error_code ignored;
  const bool directory = std::filesystem::is_directory(source, ignored);
  if (!named && !std::filesystem::exists(source, ignored)) {
    throw InputError("there is no data set, directory or file \"" + source +
                     "\"; data sets are fashion-mnist and synthetic");
  }
  if (model.task == "text") {
    if (named) {
      throw InputError(model.config.model +
                       " takes text: name a file, or use synthetic data, not fashion-mnist");
    }
    return std::make_shared<TextDataset>(source, split, model);
  }
  if (!named && !directory) {
    throw InputError(model.config.model + " takes images: name fashion-mnist, a directory of IDX " +
                         "files or synthetic, not a file",
                     {.file = source, .pointer = "", .line = 0});
  }
  const std::filesystem::path place =
      named ? files::find_fashion_mnist() : std::filesystem::path(source);
  return std::make_shared<ImageDataset>(source, files::read_images(place, split == Split::kTrain),
                                        model);
}

}  // namespace

Dataset::Dataset(const Model& model)
    : input_shape_(model.config.input),
      target_shape_(target_shape_of(model)),
      tokens_(model.task == "text") {}

Batch Dataset::allocate() const {
  return {at::empty(input_shape_, tokens_ ? at::kLong : at::kFloat),
          at::empty(target_shape_, at::kLong)};
}

void Dataset::write(std::span<const int64_t> samples, Batch& batch) const {
  check_tensor(batch.input, input_shape_, tokens_ ? at::kLong : at::kFloat, "input");
  check_tensor(batch.target, target_shape_, at::kLong, "target");
  if (static_cast<int64_t>(samples.size()) != batch_size()) {
    throw InputError("a batch takes " + std::to_string(batch_size()) + " samples, not " +
                     std::to_string(samples.size()));
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i] < 0 || samples[i] >= size()) {
      throw InputError("there is no sample " + std::to_string(samples[i]));
    }
    write_sample(samples[i], static_cast<int64_t>(i), batch);
  }
}

std::shared_ptr<const Dataset> open_dataset(const std::string& source, Split split,
                                            const Model& model) {
  auto dataset = open_source(source, split, model);
  if (dataset->size() < dataset->batch_size()) {
    throw InputError(source + " has only " + std::to_string(dataset->size()) +
                     " samples, less than one batch of " + std::to_string(dataset->batch_size()));
  }
  return dataset;
}

BatchStream::BatchStream(std::shared_ptr<const Dataset> dataset, uint64_t seed, bool shuffle,
                         int rank, int ranks)
    : dataset_(std::move(dataset)), seed_(seed), shuffle_(shuffle), rank_(rank), ranks_(ranks) {
  if (per_epoch() == 0) {
    throw InputError(fmt::format(
        "the data have {} samples, and {} ranks with batches of {} need more: use fewer ranks or a "
        "smaller batch",
        dataset_->size(), ranks, dataset_->batch_size()));
  }
  order_.resize(dataset_->size());
}

void BatchStream::seek(int64_t position) {
  if (position < 0) throw InputError("there is no batch " + std::to_string(position));
  position_ = position;
}

void BatchStream::shuffle_for(int64_t epoch) {
  if (epoch == shuffled_epoch_) return;
  shuffled_epoch_ = epoch;
  std::iota(order_.begin(), order_.end(), int64_t{0});
  if (!shuffle_) return;
  std::mt19937_64 random(mix(seed_ ^ mix(static_cast<uint64_t>(epoch))));
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[below(random, i)]);
}

Batch BatchStream::next() {
  Batch batch = dataset_->allocate();
  next(batch);
  return batch;
}

void BatchStream::next(Batch& reuse) {
  shuffle_for(epoch());
  const size_t size = static_cast<size_t>(dataset_->batch_size());
  const auto number = static_cast<size_t>(position_ % per_epoch() * ranks_ + rank_);
  const size_t first = number * size;
  dataset_->write(std::span(order_).subspan(first, size), reuse);
  ++position_;
}

}  // namespace reprise::training
