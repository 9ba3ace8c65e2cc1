// This header has data sets for the models of the zoo: Fashion-MNIST, text as bytes, and synthetic
// data.
//
// Guarantees: raw data live in host memory of this library's own (std::vector), outside the
// allocator that enforces a budget. There, a batch costs exactly its two tensors, and nothing if it
// is written into existing ones. Everything is deterministic, and torch's random state is never
// touched.
//
// Not handled: other devices (move the batch there), augmentation, data that do not fit into
// memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace reprise::training {

struct Model;  // zoo.h

// A Batch has the input of a model and the target that the loss compares with. Both are contiguous
// CPU tensors. Inputs are float32 (tokens int64). Targets are int64: {batch}; {batch, height,
// width} for segmentation; {batch, time} for text.
struct Batch {
  at::Tensor input;
  at::Tensor target;
};

enum class Split { kTrain, kTest };

// A Dataset is one split of one source, in the form that one model takes.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::string description() const = 0;  // "fashion-mnist, 60000 images, resized to 64x64"
  virtual int64_t size() const = 0;             // samples, at least one batch of the model

  int64_t batch_size() const { return input_shape_.at(0); }

  // Returns a batch of the right shapes and types, whose memory is not written yet.
  Batch allocate() const;
  // Writes batch_size() samples, with numbers from 0 to size() - 1, into `batch`. No step that used
  // the tensors may still be under way. Throws InputError unless the tensors have the shapes and
  // types of allocate() and are contiguous, on the CPU. The function allocates no memory through
  // torch.
  void write(std::span<const int64_t> samples, Batch& batch) const;

 protected:
  explicit Dataset(const Model& model);

  // Writes the values of one sample; `position` is its place in the batch.
  virtual void write_sample(int64_t sample, int64_t position, Batch& batch) const = 0;

  const std::vector<int64_t>& input_shape() const { return input_shape_; }
  const std::vector<int64_t>& target_shape() const { return target_shape_; }

 private:
  std::vector<int64_t> input_shape_, target_shape_;
  bool tokens_ = false;
};

// Opens one of these sources:
// - "fashion-mnist": the data set, searched where Debian's package dataset-fashion-mnist puts it,
//   in the user's cache folder and in ./data;
// - a directory: the four IDX files of MNIST's layout (train-images-idx3-ubyte, ..., plain or .gz);
// - a file: text, one token a byte. The first 90 % are for training. A sample is `time` bytes and
//   the `time` bytes that begin one byte later. Samples do not overlap;
// - "synthetic": 64 batches (test: 8) of random samples that can be learned, for any model.
//
// Images become the input that the model takes. They are grey values, as (value / 255 - 0.286) /
// 0.353 (the mean and the deviation of Fashion-MNIST), repeated over all channels and resized
// bilinearly (half-pixel centres, no smoothing when shrinking). An LSTM reads the rows of the image
// as time steps. For segmentation, every pixel of at least 1/8 of full intensity has the class 1 +
// the image's label, and all others have the class 0.
//
// Throws InputError, which names the file, for a source that is missing, truncated, damaged or not
// of the model's kind. The error also covers labels or bytes that the model has no class for, and
// data for less than one batch. Time: reading the files (Fashion-MNIST: about half a second; 47 MB
// of host memory).
std::shared_ptr<const Dataset> open_dataset(const std::string& source, Split split,
                                            const Model& model);

// A BatchStream is an endless sequence of batches: pass after pass over the data, each sample at
// most once a pass. If a pass does not divide into batches, the samples left over are skipped.
// Batch number n depends only on the data set, the seed and n. Memory: 8 bytes a sample.
//
// Each of several ranks has a stream of its own: in each pass, batch n of rank r is batch
// n * ranks + r of the stream of one rank. Batches that are left over are skipped.
class BatchStream {
 public:
  BatchStream(std::shared_ptr<const Dataset> dataset, uint64_t seed, bool shuffle = true,
              int rank = 0, int ranks = 1);

  const Dataset& dataset() const { return *dataset_; }
  int64_t per_epoch() const { return dataset_->size() / dataset_->batch_size() / ranks_; }
  int64_t position() const { return position_; }             // number of the next batch, from 0
  int64_t epoch() const { return position_ / per_epoch(); }  // epoch of the next batch
  void seek(int64_t position);                               // continues at this batch; at least 0

  Batch next();             // in new tensors
  void next(Batch& reuse);  // in the given ones, see Dataset::write

 private:
  void shuffle_for(int64_t epoch);

  std::shared_ptr<const Dataset> dataset_;
  uint64_t seed_;
  bool shuffle_;
  int64_t rank_, ranks_;
  int64_t position_ = 0;
  int64_t shuffled_epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace reprise::training
