// Turns a measured chain into a profile, which also says where it was measured.
#include "reprise/model/profile.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include "reprise/runtime/allocator.h"
#include "reprise/runtime/measure.h"
#include "runtime/chain/measure.h"
#include "runtime/chain/prepare.h"
#include "runtime/device/activity.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::internal::chain {

using device::shape_text;

Profile describe(const PreparedModel& model, const Tensors& sample, MeasuredChain measured) {
  Profile profile;
  profile.device = model.device.str();
  profile.versions = {{"reprise", REPRISE_VERSION}, {"torch", TORCH_VERSION}};
  profile.threads = at::get_num_threads();
  for (const at::Tensor& tensor : sample) profile.inputs.push_back(shape_text(tensor));
  profile.signature = measured.chain.name;
  for (const PreparedStage& stage : model.stages) profile.signature += "|" + stage.stage.name;
  profile.spread = std::move(measured.spread);
  profile.processor_percent = measured.processor_percent;
  profile.problem = std::move(measured.chain);
  return profile;
}

}  // namespace reprise::runtime::internal::chain

namespace reprise::runtime {

Profile profile(const std::vector<Stage>& stages, const Tensors& sample, const Loss& loss,
                const MeasureOptions& options) {
  if (!sample.empty() && sample[0].defined() && sample[0].device().is_cpu()) {
    install_cpu_allocator();
  }
  const internal::device::Measuring measuring;
  const internal::chain::PreparedModel model =
      internal::chain::prepare({{"", stages}}, {}, {sample});
  return describe(model, sample, measure(model, {sample}, loss, options));
}

}  // namespace reprise::runtime
