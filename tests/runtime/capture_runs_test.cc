// Tests how often capture() runs a step, and what its runs show: literals and operations that
// change from run to run, writes that no schema declares, and state that passes from one run to the
// next.
#include <torch/library.h>

#include "fixture.h"
#include "reprise/runtime/capture.h"
#include "runtime/graph/capture_time.h"
#include "runtime/step/fingerprint.h"

namespace reprise::runtime::testing {
namespace {

using internal::graph::CaptureTime;
using internal::step::Extent;
using internal::step::Fingerprint;

// Writes its operand and does not say so.
at::Tensor scribble(const at::Tensor& x) {
  auto* data = static_cast<float*>(x.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) data[i] += 1;
  return at::ones({1});
}

TORCH_LIBRARY(reprise_capture_runs, library) { library.def("scribble(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(reprise_capture_runs, CPU, library) { library.impl("scribble", &scribble); }

at::Tensor call_scribble(const at::Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("reprise_capture_runs::scribble", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  return op.call(x);
}

class CaptureRuns : public RuntimeTest {
 protected:
  using Change = std::function<at::Tensor(const at::Tensor& y)>;

  // Returns a step that calls `change` on what a layer makes of its input, and that counts its
  // calls.
  std::function<at::Tensor(const Tensors&)> step(const Change& change) {
    return [this, change](const Tensors& in) {
      ++calls_;
      at::Tensor loss = change(layer_->forward(in[0])).square().mean();
      loss.backward();
      return loss;
    };
  }

  std::string refusal(const Change& change, int runs = CaptureOptions().runs) {
    try {
      capture(step(change), inputs_, {.measure = quick(), .runs = runs});
    } catch (const InputError& error) {
      return error.what();
    }
    return "captured";
  }

  // Captures the step and compares a run of it with a plain one. Returns how often the capture has
  // called the function.
  int calls_of_capture(const Change& change, int runs = CaptureOptions().runs) {
    calls_ = 0;
    CapturedStep captured = capture(step(change), inputs_,
                                    {.modules = {layer_.ptr()},
                                     .lockstep = Lockstep::kNever,
                                     .measure = quick(),
                                     .runs = runs});
    const int calls = calls_;
    layer_->zero_grad();
    const at::Tensor plain = step(change)(inputs_);
    const at::Tensor gradient = layer_->weight.grad().clone();
    layer_->zero_grad();
    EXPECT_TRUE(plain.equal(captured.run(inputs_)));
    EXPECT_TRUE(gradient.equal(layer_->weight.grad()));
    layer_->zero_grad();
    return calls;
  }

  nn::Linear layer_{64, 64};
  Tensors inputs_{at::randn({256, 64})};
  int calls_ = 0;
};

TEST_F(CaptureRuns, AStepRunsAsOftenAsTheOptionSays) {
  const Change sine = [](const at::Tensor& y) { return y.sin(); };
  EXPECT_EQ(calls_of_capture(sine), 3);
  EXPECT_EQ(calls_of_capture(sine, 2), 2);
  EXPECT_EQ(calls_of_capture(sine, 5), 5);
  EXPECT_PRED2(contains, refusal(sine, 1), "in at least 2 runs");
}

TEST_F(CaptureRuns, WhatChangesAtEveryCallOrAtEverySecondOrThirdOneIsRefused) {
  for (const int period : {1, 2, 3}) {
    for (int phase = 0; phase < period; ++phase) {
      SCOPED_TRACE(fmt::format("period {}, phase {}", period, phase));
      int count = phase;
      const auto special = [&] { return ++count % period == 0; };
      const auto number = [&] {
        return period == 1 ? static_cast<float>(++count) : special() ? 2.0F : 1.0F;
      };
      EXPECT_PRED2(contains, refusal([&](const at::Tensor& y) { return y * number(); }),
                   "changes from run to run");
      EXPECT_PRED2(contains, refusal([&](const at::Tensor& y) {
                     return y * at::tensor({1.0F, number()})[1];
                   }),
                   "changes from run to run");
      if (period == 1) continue;
      EXPECT_PRED2(contains,
                   refusal([&](const at::Tensor& y) { return special() ? y.sin() : y.cos(); }),
                   "does not do the same work twice");
    }
  }
  // Two runs show what changes at every call or at every second one.
  int count = 0;
  EXPECT_PRED2(contains,
               refusal([&](const at::Tensor& y) { return ++count % 2 ? y.sin() : y.cos(); }, 2),
               "does not do the same work twice");
}

TEST_F(CaptureRuns, AnotherTensorOfTheSameShapeIsNoticed) {
  int count = 0;
  EXPECT_PRED2(contains, refusal([&](const at::Tensor& y) {
                 const at::Tensor a = y.sin(), b = y.cos();
                 return ++count % 2 ? a * a : a * b;
               }),
               "is another tensor from run to run");
}

TEST_F(CaptureRuns, WhatTheFirstRunKeepsForLaterRunsIsNoChange) {
  at::Tensor table;
  const auto with_table = [&](const at::Tensor& y) {
    if (!table.defined()) table = at::arange(64).cos();
    return y * table;
  };
  // Three runs are in vain: the first one makes the table, the second one reads what the run before
  // made, and the third one differs from the first one.
  EXPECT_EQ(calls_of_capture(with_table), 3 + 4);
}

TEST_F(CaptureRuns, StateThatPassesFromRunToRunIsRefused) {
  for (const int runs : {2, 3}) {
    at::Tensor state = at::zeros({256, 64});
    EXPECT_PRED2(contains,
                 refusal(
                     [&](const at::Tensor& y) {
                       const at::Tensor out = y + state;
                       state = y.detach() * 0.5;
                       return out;
                     },
                     runs),
                 "the run of the step before this one made");
  }
}

TEST_F(CaptureRuns, GradientsOfLeavesThatNobodyNamedAreNoPartOfTheRecording) {
  const at::Tensor plain = step([](const at::Tensor& y) { return y; })(inputs_);
  const at::Tensor before = layer_->weight.grad().clone();
  calls_ = 0;
  CapturedStep captured =
      capture(step([](const at::Tensor& y) { return y; }), inputs_, {.measure = quick()});
  EXPECT_EQ(calls_, 4);
  EXPECT_TRUE(before.equal(layer_->weight.grad()));
  EXPECT_TRUE(plain.equal(captured.run(inputs_)));
  EXPECT_TRUE((before + before).equal(layer_->weight.grad()));
  layer_->zero_grad();
}

// The product is large, so that one look at its bytes after the call does not say who wrote them.
TEST_F(CaptureRuns, ALargeWriteThatNoSchemaDeclaresIsFound) {
  const at::Tensor factor = at::randn({256, 64}).requires_grad_(true);
  const auto function = [&](const Tensors& in) {
    ++calls_;
    const at::Tensor product = (in[0] * 3).detach();
    const at::Tensor first = product * factor;
    call_scribble(product);
    at::Tensor loss = (first * (product * factor)).sum();
    loss.backward();
    return loss;
  };
  CapturedStep captured = capture(function, inputs_, {.measure = quick()});
  EXPECT_EQ(calls_, 5);
  const auto op =
      std::find_if(captured.graph().ops.begin(), captured.graph().ops.end(),
                   [](const Op& one) { return one.id.find("scribble") != std::string::npos; });
  ASSERT_NE(op, captured.graph().ops.end());
  EXPECT_FALSE(op->variants[0].writes.empty());
  const at::Tensor plain = function(inputs_), gradient = factor.grad().clone();
  factor.mutable_grad() = at::Tensor();
  EXPECT_TRUE(plain.equal(captured.run(inputs_)));
  EXPECT_TRUE(gradient.equal(factor.grad()));
}

// An external is written, which only the copy of its bytes can take back.
TEST_F(CaptureRuns, ALargeExternalThatIsWrittenIsAsBeforeTheCapture) {
  const at::Tensor noise = at::zeros({256, 64});
  const auto function = step([&](const at::Tensor& y) {
    call_scribble(noise);
    return y + noise;
  });
  CapturedStep captured = capture(function, inputs_, {.measure = quick()});
  EXPECT_TRUE(noise.equal(at::zeros({256, 64})));
  const at::Tensor plain = function(inputs_);
  EXPECT_TRUE(noise.equal(at::ones({256, 64})));
  noise.zero_();
  EXPECT_TRUE(plain.equal(captured.run(inputs_)));
  EXPECT_TRUE(noise.equal(at::ones({256, 64})));
}

TEST_F(CaptureRuns, WhatTheHostWritesIntoLargeMemoryIsRefused) {
  const auto write = [](const at::Tensor& x) { x.data_ptr<float>()[x.numel() - 1] = 7; };
  const std::string reads = "written inside the step by code that calls no operation";
  // The memory is read, and it is written over by the next call.
  EXPECT_PRED2(contains, refusal([&](const at::Tensor& y) {
                 const at::Tensor fresh = at::ones({256, 64});
                 write(fresh);
                 return y * fresh;
               }),
               reads);
  EXPECT_PRED2(contains, refusal([&](const at::Tensor& y) {
                 at::Tensor fresh = at::ones({256, 64});
                 write(fresh);
                 fresh.mul_(2);
                 return y * fresh;
               }),
               reads);
}

// Small memory that the host writes is a literal from there on. Bytes that were read before are no
// literal.
TEST_F(CaptureRuns, ALiteralIsOneFromTheMomentOnAtWhichTheHostWritesIt) {
  const auto late = [](const at::Tensor& y) {
    const at::Tensor small = at::ones({64});
    const at::Tensor first = y * small;
    small.data_ptr<float>()[3] = 5;
    return first * small;
  };
  EXPECT_EQ(calls_of_capture(late), 3);
}

TEST_F(CaptureRuns, MemoryOfTheHostThatIsNewInEachRunIsALiteral) {
  std::vector<std::unique_ptr<std::vector<float>>> all;  // at other addresses
  float last = 4;
  const auto from_host = [&](const at::Tensor& y) {
    all.push_back(std::make_unique<std::vector<float>>(64, last));
    return y * at::from_blob(all.back()->data(), {64});
  };
  EXPECT_EQ(calls_of_capture(from_host), 3);
  EXPECT_PRED2(contains, refusal([&](const at::Tensor& y) {
                 last += 1;
                 return from_host(y);
               }),
               "changes from run to run");
}

TEST(FingerprintTest, EachByteOfAnExtentCounts) {
  constexpr int64_t kPiece = Fingerprint::kPiece;
  const int64_t bytes = 9 * kPiece + 5;
  const at::Tensor memory = at::zeros({bytes}, at::kByte);
  const c10::Storage& storage = memory.storage();
  auto* data = memory.data_ptr<uint8_t>();
  Fingerprint print(storage);
  EXPECT_FALSE(print.renew(storage, {0, bytes}));
  for (const int64_t at : {int64_t{0}, kPiece - 1, kPiece, 4 * kPiece + 77, bytes - 6, bytes - 1}) {
    SCOPED_TRACE(at);
    data[at] ^= 1;
    // Other pieces do not show it, and their hashes stay.
    const int64_t other = at < 5 * kPiece ? 6 * kPiece : 0;
    EXPECT_FALSE(print.renew(storage, {other, other + kPiece}));
    EXPECT_TRUE(print.renew(storage, {at, at + 1}));
    EXPECT_FALSE(print.renew(storage, {0, bytes}));
  }
  EXPECT_FALSE(print.renew(storage, {0, 0}));
}

TEST(FingerprintTest, TheHashesDoNotDependOnTheThreads) {
  const at::Tensor memory = at::randint(0, 255, {40 * Fingerprint::kPiece}, at::kByte);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  Fingerprint print(memory.storage());
  at::set_num_threads(3);
  EXPECT_FALSE(print.renew(memory.storage(), {0, memory.numel()}));
  at::set_num_threads(threads);
}

TEST(CaptureTimeTest, AShortStepHasTwoSecondsAndALongOneEightOfItsOwn) {
  const Nanos begun(5), second(1'000'000'000);
  const auto spent = [&](Nanos step) { return CaptureTime{begun, step}.end() - begun; };
  EXPECT_EQ(spent(Nanos(1000)), spent(Nanos(100'000'000)));
  EXPECT_LE(spent(Nanos(1000)), second + second);
  EXPECT_GT(spent(second), second * 7);
  EXPECT_LE(spent(second), second * 8);
}

}  // namespace
}  // namespace reprise::runtime::testing
