// Collectives: gloo's, on the memory of the device.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include "device.h"

namespace py = pybind11;

namespace sim {

using Tensors = std::vector<Tensor>;
using Lists = std::vector<Tensors>;
using Work = c10::intrusive_ptr<c10d::Work>;
using Future = c10::intrusive_ptr<c10::ivalue::Future>;

static Tensor seen(const Tensor& t) {
  TORCH_CHECK(is_here(t), "No backend type associated with device type ", t.device().type(), ": simccl takes tensors of sim");
  finish_stream(t.device().index());
  return host(t);
}
static Tensors seen(const Tensors& ts) {
  Tensors out;
  for (auto& t : ts) out.push_back(seen(t));
  return out;
}
static Lists seen(const Lists& lists) {
  Lists out;
  for (auto& one : lists) out.push_back(seen(one));
  return out;
}
static Tensors flat(const Lists& lists) {
  Tensors out;
  for (auto& one : lists) out.insert(out.end(), one.begin(), one.end());
  return out;
}

// The work of gloo, whose result is the device's tensors; a mean is divided when the sum is there.
struct OnDevice final : c10d::Work {
  ::sim::Work inner;
  Tensors results;
  Future future;

  OnDevice(::sim::Work work, Tensors outputs, Tensors divided, int by) : inner(std::move(work)), results(std::move(outputs)) {
    std::vector<c10::Device> where;
    if (!results.empty()) where.push_back(results[0].device());
    future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), where);
    auto finish = [future = future, results = results, divided, by] {
      for (auto t : divided) t.div_(by);
      future->markCompleted(c10::IValue(results));
    };
    Future there;
    try {
      there = inner->getFuture();
    } catch (const std::exception&) { // gloo's reduce-scatter has none
      inner->wait();
      finish();
      return;
    }
    there->addCallback([future = future, finish](c10::ivalue::Future& f) {
      if (f.hasError()) return future->setError(f.exception_ptr());
      finish();
    });
  }
  bool isCompleted() override { return inner->isCompleted(); }
  bool isSuccess() const override { return inner->isSuccess(); }
  std::exception_ptr exception() const override { return inner->exception(); }
  int sourceRank() const override { return inner->sourceRank(); }
  Tensors result() override { return results; }
  bool wait(std::chrono::milliseconds timeout) override { return inner->wait(timeout); }
  void synchronize() override { inner->wait(); }
  void blockCurrentStream() override { inner->wait(); }
  void abort() override { inner->abort(); }
  Future getFuture() override { return future; }
};

// A message: gloo's sends and receives have no future.
struct Message final : c10d::Work {
  ::sim::Work inner;
  explicit Message(::sim::Work work) : inner(std::move(work)) {}
  bool isCompleted() override { return inner->isCompleted(); }
  bool isSuccess() const override { return inner->isSuccess(); }
  int sourceRank() const override { return inner->sourceRank(); }
  bool wait(std::chrono::milliseconds timeout) override { return inner->wait(timeout); }
  void synchronize() override { inner->wait(); }
  void abort() override { inner->abort(); }
};

struct Collectives final : c10d::Backend {
  c10::intrusive_ptr<c10d::Backend> gloo;
  explicit Collectives(c10::intrusive_ptr<c10d::Backend> gloo) : Backend(gloo->getRank(), gloo->getSize()), gloo(std::move(gloo)) {}

  const std::string getBackendName() const override { return "simccl"; }
  void setTimeout(std::chrono::milliseconds t) override { gloo->setTimeout(t); }
  void setSequenceNumberForGroup() override { gloo->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo->getSequenceNumberForGroup(); }
  void abort() override { gloo->abort(); }
  void shutdown() override { gloo->shutdown(); }

  Work made(Work work, Tensors outputs, Tensors divided = {}) {
    return c10::make_intrusive<OnDevice>(std::move(work), std::move(outputs), std::move(divided), getSize());
  }
  // gloo knows no mean.
  template <class Options>
  static bool summed(Options& options) {
    bool mean = options.reduceOp == c10d::ReduceOp::AVG;
    if (mean) options.reduceOp = c10d::ReduceOp::SUM;
    return mean;
  }

  Work broadcast(Tensors& ts, const c10d::BroadcastOptions& o) override {
    auto there = seen(ts);
    return made(gloo->broadcast(there, o), ts);
  }
  Work allreduce(Tensors& ts, const c10d::AllreduceOptions& given) override {
    auto o = given;
    bool mean = summed(o);
    auto there = seen(ts);
    return made(gloo->allreduce(there, o), ts, mean ? there : Tensors());
  }
  Work allreduce_coalesced(Tensors& ts, const c10d::AllreduceCoalescedOptions& given) override {
    auto o = given;
    bool mean = summed(o);
    auto there = seen(ts);
    return made(gloo->allreduce_coalesced(there, o), ts, mean ? there : Tensors());
  }
  Work reduce(Tensors& ts, const c10d::ReduceOptions& given) override {
    auto o = given;
    bool mean = summed(o);
    auto there = seen(ts);
    return made(gloo->reduce(there, o), ts, mean ? there : Tensors());
  }
  Work allgather(Lists& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    auto there = seen(out);
    auto from = seen(in);
    return made(gloo->allgather(there, from, o), flat(out));
  }
  Work _allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions& o) override {
    // flat, as for NCCL: SyncBatchNorm's output has one row, which gloo would not divide
    auto there = seen(out).view({-1}), from = seen(in).view({-1});
    return made(gloo->_allgather_base(there, from, o), {out});
  }
  Work allgather_into_tensor_coalesced(Tensors& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    auto there = seen(out), from = seen(in);
    return made(gloo->allgather_into_tensor_coalesced(there, from, o), out);
  }
  Work gather(Lists& out, Tensors& in, const c10d::GatherOptions& o) override {
    auto there = seen(out);
    auto from = seen(in);
    return made(gloo->gather(there, from, o), flat(out));
  }
  Work scatter(Tensors& out, Lists& in, const c10d::ScatterOptions& o) override {
    auto there = seen(out);
    auto from = seen(in);
    return made(gloo->scatter(there, from, o), out);
  }
  Work reduce_scatter(Tensors& out, Lists& in, const c10d::ReduceScatterOptions& given) override {
    auto o = given;
    bool mean = summed(o);
    auto there = seen(out);
    auto from = seen(in);
    return made(gloo->reduce_scatter(there, from, o), out, mean ? there : Tensors());
  }
  Work _reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& given) override {
    auto o = given;
    bool mean = summed(o);
    auto there = seen(out), from = seen(in);
    return made(gloo->_reduce_scatter_base(there, from, o), {out}, mean ? Tensors{there} : Tensors());
  }
  Work alltoall_base(Tensor& out, Tensor& in, std::vector<int64_t>& out_sizes, std::vector<int64_t>& in_sizes, const c10d::AllToAllOptions& o) override {
    auto there = seen(out), from = seen(in);
    return made(gloo->alltoall_base(there, from, out_sizes, in_sizes, o), {out});
  }
  Work send(Tensors& ts, int to, int tag) override {
    auto there = seen(ts);
    return c10::make_intrusive<Message>(gloo->send(there, to, tag));
  }
  Work recv(Tensors& ts, int from, int tag) override {
    auto there = seen(ts);
    return c10::make_intrusive<Message>(gloo->recv(there, from, tag));
  }
  Work barrier(const c10d::BarrierOptions& o) override { return gloo->barrier(o); }
};

void define_collectives(py::module& m) {
  m.def("collectives", [](c10::intrusive_ptr<c10d::Backend> gloo) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<Collectives>(std::move(gloo));
  });
}

} // namespace sim
