// A network of tensors in a tenth of its memory: the Ising model on the square lattice by the
// tensor renormalization group (Levin and Nave 2007), differentiated as in Liao et al. 2019.
//
// The partition function of 2^steps spins is contracted step by step. Each step joins two tensors
// and keeps the `bond` largest singular values, so that the tensors of the first steps grow: a
// chain of stages of different sizes. Its derivative by the coupling K is minus the energy u of a
// spin. With tangents in the chain, the energy is there after the forward pass, and the backward
// pass finds its derivative, which is the specific heat c.
//
//   tensor_network [BOND] [STEPS] [BUDGET] [K ...]
#include <reprise/runtime.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iomanip>
#include <iostream>
#include <optional>

namespace rt = reprise::runtime;

namespace {

using torch::Tensor;

// A tensor and, where tangents are asked for, its derivative by K.
struct Dual {
  Tensor value;
  Tensor tangent = {};
};

// A contraction is linear in both of its operands.
Dual contract(const char* equation, const Dual& a, const Dual& b) {
  Dual c{torch::einsum(equation, {a.value, b.value})};
  if (a.tangent.defined()) {
    c.tangent = torch::einsum(equation, {a.tangent, b.value}) +
                torch::einsum(equation, {a.value, b.tangent});
  }
  return c;
}

Dual log(const Dual& a) {
  return {a.value.log(), a.tangent.defined() ? a.tangent / a.value : Tensor()};
}

Dual power(const Dual& a, double exponent) {
  Dual b{a.value.pow(exponent)};
  if (a.tangent.defined()) b.tangent = exponent * a.value.pow(exponent - 1) * a.tangent;
  return b;
}

Dual map(const Dual& a, const std::function<Tensor(const Tensor&)>& linear) {
  return {linear(a.value), a.tangent.defined() ? linear(a.tangent) : Tensor()};
}

Dual sum(const Dual& a, const Dual& b) {
  return {a.value + b.value, a.tangent.defined() ? a.tangent + b.tangent : Tensor()};
}

// Splits a tensor of four legs, in the order given, into two halves of three legs.
std::pair<Dual, Dual> halves(const Dual& t, std::vector<int64_t> order, int64_t bond) {
  const int64_t d = t.value.size(0), keep = std::min(bond, d * d);
  const auto legs = [&](const Tensor& half) { return half.reshape({d, d, keep}); };
  const Dual matrix = map(t, [&](const Tensor& x) {
    return x.permute(order).reshape({d * d, d * d});
  });
  if (!matrix.tangent.defined()) {
    const auto [left, right] = rt::nn::svd_halves(matrix.value, keep);
    return {{legs(left)}, {legs(right)}};
  }
  const rt::nn::Svd whole = rt::nn::safe_svd(matrix.value);
  const rt::nn::Svd tangent = rt::nn::svd_tangent(whole, matrix.tangent, keep);
  const Tensor s = whole.s.narrow(0, 0, keep);
  // The root of a singular value that is zero has no derivative. Its vectors are left out.
  const Tensor zero = s <= 1e-14 * s.detach()[0];
  const Dual root = power({s + zero, tangent.s}, 0.5);
  const auto half = [&](const Tensor& vectors, const Tensor& change) {
    const Dual scaled = contract("ik,k->ik", {vectors.narrow(1, 0, keep), change}, root);
    return map(scaled, [&](const Tensor& x) { return legs(x * ~zero); });
  };
  return {half(whole.u, tangent.u), half(whole.v, tangent.v)};
}

// These tensors pass from stage to stage: values, and their tangents behind them.
rt::Tensors pack(const std::vector<Dual>& duals) {
  rt::Tensors all;
  for (const Dual& dual : duals) all.push_back(dual.value);
  for (const Dual& dual : duals) {
    if (dual.tangent.defined()) all.push_back(dual.tangent);
  }
  return all;
}

std::vector<Dual> unpack(const rt::Tensors& all, size_t count) {
  std::vector<Dual> duals(count);
  for (size_t i = 0; i < count; ++i) {
    duals[i].value = all[i];
    if (all.size() > count) duals[i].tangent = all[count + i];
  }
  return duals;
}

// The tensor of one spin. Its legs, up, left, down and right, are the spins of the dual lattice.
rt::Tensors first_tensor(const Tensor& k, bool tangents) {
  Dual root{torch::stack({(2 * k.cosh()).sqrt(), (2 * k.sinh()).sqrt()})};
  Dual nothing{torch::zeros({}, k.options())};
  if (tangents) {
    root.tangent = torch::stack({k.sinh(), k.cosh()}) / root.value;
    nothing.tangent = torch::zeros({}, k.options());
  }
  const Dual pair = contract("i,j->ij", root, root), four = contract("ij,kl->ijkl", pair, pair);
  const Tensor legs = torch::arange(2);
  const Tensor odd =
      (legs.view({2, 1, 1, 1}) + legs.view({2, 1, 1}) + legs.view({2, 1}) + legs) % 2;
  return pack({map(four, [&](const Tensor& x) { return x * (1 - odd) / 2; }), nothing});
}

// [step] A tensor of `spins` spins becomes halves in two ways, for the two kinds of places on a
// chessboard. The halves are much smaller than the tensor.
rt::Tensors split(const rt::Tensors& in, int64_t bond, double spins) {
  const std::vector<Dual> before = unpack(in, 2);  // the tensor, and ln Z of a spin so far
  const Dual square = contract("uldr,uldr->", before[0], before[0]);
  const Dual t = contract("uldr,->uldr", before[0], power(square, -0.5));
  const auto [south_east, north_west] = halves(t, {0, 1, 2, 3}, bond);
  const auto [north_east, south_west] = halves(t, {1, 2, 0, 3}, bond);
  const Dual norm = map(log(square), [spins](const Tensor& x) { return x / (2 * spins); });
  return pack({north_west, north_east, south_east, south_west, sum(before[1], norm)});
}

// The halves at the corners of a square become one tensor of twice as many spins.
rt::Tensors join(const rt::Tensors& in) {
  const std::vector<Dual> half = unpack(in, 5);
  const Dual north = contract("wnx,ney->wxey", half[0], half[1]);
  const Dual south = contract("esz,wsv->ezwv", half[2], half[3]);
  return pack({contract("wxey,ezwv->xvzy", north, south), half[4]});
}

// The last tensor meets itself across the borders.
rt::Tensors close(const rt::Tensors& in, double spins) {
  const std::vector<Dual> before = unpack(in, 2);
  const Dual trace = map(before[0], [](const Tensor& x) { return torch::einsum("xyxy->", x); });
  const Dual rest = map(log(trace), [spins](const Tensor& x) { return x / spins; });
  return pack({sum(before[1], rest)});
}

// [stages]
std::vector<rt::Stage> make_stages(int64_t bond, int steps, bool tangents) {
  std::vector<rt::Stage> stages;
  const auto add = [&](const std::string& name, std::function<rt::Tensors(const rt::Tensors&)> f) {
    stages.push_back({name, nullptr, std::move(f)});
  };
  add("spin", [=](const rt::Tensors& in) { return first_tensor(in[0], tangents); });
  for (int i = 0; i < steps; ++i) {
    add("split" + std::to_string(i),
        [=](const rt::Tensors& in) { return split(in, bond, std::ldexp(1, i)); });
    add("join" + std::to_string(i), join);
  }
  add("close", [=](const rt::Tensors& in) { return close(in, std::ldexp(1, steps)); });
  return stages;
}
// [/stages]

struct Found {
  rt::Tensors outputs;
  Tensor gradient;  // of the last output
  int64_t peak = 0;
  double seconds = 0;
};

template <class Forward>
Found differentiate(double coupling, const Forward& forward) {
  const Tensor k = torch::full({}, coupling, torch::kDouble).requires_grad_();
  rt::reset_peak(torch::kCPU);
  const auto begin = std::chrono::steady_clock::now();
  Found found;
  found.outputs = forward(rt::Tensors{k});
  found.outputs.back().backward();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  found.seconds = took.count();
  found.peak = rt::memory_count(torch::kCPU).peak;
  found.gradient = k.grad();
  for (Tensor& x : found.outputs) x = x.detach();
  return found;
}

struct Numbers {
  double free_energy = 0, energy = 0;
  std::optional<double> heat;
};

// Onsager's solution: ln Z of a spin of an infinite lattice, and its derivatives.
Numbers onsager(double coupling) {
  const int64_t points = 1 << 15;
  const Tensor k = torch::full({}, coupling, torch::kDouble).requires_grad_();
  const Tensor angle = (torch::arange(points, torch::kDouble) + 0.5) * (M_PI / 2 / points);
  const Tensor modulus = 2 * (2 * k).sinh() / (2 * k).cosh().square();
  const Tensor inner = (1 - (modulus * angle.sin()).square()).sqrt();
  const Tensor exact = (std::sqrt(2) * (2 * k).cosh()).log() + (1 + inner).log().mean() / 2;
  const Tensor first = torch::autograd::grad({exact}, {k}, {}, true, true)[0];
  const Tensor second = torch::autograd::grad({first}, {k})[0];
  return {exact.item<double>(), -first.item<double>(), coupling * coupling * second.item<double>()};
}

Numbers numbers(const Found& found, double k) {
  const double gradient = found.gradient.item<double>();
  if (found.outputs.size() == 1) return {found.outputs[0].item<double>(), -gradient, {}};
  return {found.outputs[0].item<double>(), -found.outputs[1].item<double>(), k * k * gradient};
}

void print(const std::string& way, const Numbers& n, const Found* found, const std::string& rest) {
  std::cout << "  " << std::left << std::setw(18) << way << std::right << std::fixed
            << std::setprecision(12) << n.free_energy << std::setw(16) << std::setprecision(10)
            << n.energy << std::setw(11) << std::setprecision(6);
  n.heat ? std::cout << *n.heat : std::cout << "";
  if (found) {
    std::cout << std::setw(11) << std::setprecision(3) << static_cast<double>(found->peak) / 1e6
              << " MB" << std::setw(8) << std::setprecision(2) << found->seconds << " s";
  }
  std::cout << rest << "\n";
}

// A bond of 8 is this good at K = 0.4.
bool near(const Numbers& found, const Numbers& exact) {
  return std::abs(found.free_energy - exact.free_energy) < 1e-4 &&
         std::abs(found.energy - exact.energy) < 1e-3 &&
         std::abs(found.heat.value_or(*exact.heat) - *exact.heat) < 2e-3;
}

// Runs the chain plainly and within the budget. Returns nothing if the two differ.
std::optional<Numbers> compare(double k, int64_t bond, int steps, const std::string& budget,
                               bool tangents) {
  const std::string name = tangents ? "c, " : "u, ";
  const std::vector<rt::Stage> stages = make_stages(bond, steps, tangents);
  const Found plain = differentiate(k, [&](const rt::Tensors& inputs) {
    rt::Tensors x = inputs;
    for (const rt::Stage& stage : stages) x = stage.forward(x);
    return x;
  });
  print(name + "plain", numbers(plain, k), &plain, "");
  const rt::Tensors sample = {torch::full({}, k, torch::kDouble).requires_grad_()};
  const rt::Loss last = [](const rt::Tensors& outputs) { return outputs.back(); };
  const auto model = rt::remat(stages, sample, {.budget = reprise::Budget(budget), .loss = last});
  const Found planned = differentiate(k, [&](const rt::Tensors& x) { return model->forward(x); });
  const rt::StepReport report = model->last_step();
  bool same = torch::equal(plain.gradient, planned.gradient);
  for (size_t i = 0; i < plain.outputs.size(); ++i) {
    same = same && torch::equal(plain.outputs[i], planned.outputs[i]);
  }
  const bool foretold = report.predicted_peak == report.measured_peak;
  print(name + "within " + budget, numbers(planned, k), &planned,
        std::string(same ? ", same bits" : ", OTHER BITS") +
            (foretold ? ", peak as predicted" : ", ANOTHER PEAK THAN PREDICTED"));
  if (!same || !foretold || report.measured_peak > report.budget) return {};
  return numbers(planned, k);
}

}  // namespace

int main(int argc, char** argv) {
  rt::install_cpu_allocator();  // before the first tensor, so that every byte is counted
  torch::set_num_threads(1);    // The matrices are small.
  const int64_t bond = argc > 1 ? std::stoll(argv[1]) : 8;
  const int steps = argc > 2 ? std::stoi(argv[2]) : 20;
  const std::string budget = argc > 3 ? argv[3] : "20%";
  std::vector<double> couplings;
  for (int i = 4; i < argc; ++i) couplings.push_back(std::stod(argv[i]));
  if (couplings.empty()) couplings = {0.40};
  bool good = true;
  for (const double coupling : couplings) {
    std::cout << "K = " << std::setprecision(4) << coupling
              << ": ln Z of a spin, energy u, specific heat c, peak, time\n";
    const Numbers exact = onsager(coupling);
    print("Onsager", exact, nullptr, "");
    for (const bool tangents : {false, true}) {
      const std::optional<Numbers> found = compare(coupling, bond, steps, budget, tangents);
      good = good && found && (argc > 1 || near(*found, exact));
    }
  }
  return good ? 0 : 1;
}
