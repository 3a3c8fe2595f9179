// Ranks that use core without the C ABI, so that a test can choose the transport factories. Each
// rank is a thread with its own context.
//
//   run_core_job(2, settings, [](int rank) { return factories; }, [](CoreMember& me) { ... });
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "devices/registry.h"
#include "src/bootstrap/bootstrap.h"
#include "src/capi/variables.h"
#include "src/core/communicator/collective_calls.h"
#include "src/core/communicator/communicator.h"
#include "src/core/context/context.h"
#include "src/core/progress/variables.h"
#include "src/system/variables.h"
#include "tests/support/local_bootstrap.h"

namespace hetcomm::test {

using Factories = std::vector<std::unique_ptr<TransportFactory>>;

class CoreMember {
 public:
  // The longest time a test waits for an operation whose HETCOMM_TIMEOUT is longer or unlimited,
  // and the margin by which a timeout may be late.
  static constexpr uint64_t kMaxPatienceNs = 60'000'000'000;
  static constexpr uint64_t kMarginNs = 10'000'000'000;

  CoreMember(hetcomm_test::LocalStore& store, int rank, int size, const std::string& settings,
             Factories factories, const std::vector<Device>& devices = {},
             uint32_t first_sequence = 0) {
    auto log = std::make_unique<Log>();
    const char* const environment[] = {nullptr};
    Result<Config> config = Config::load(kVariables, environment, settings, *log);
    if (!config.ok()) throw std::runtime_error(std::string(config.status().text()));
    Result<Device> host = create_host_device();
    if (!host.ok()) throw std::runtime_error(std::string(host.status().text()));
    log->set_level(parse_log_level(config->text(variable::kLog)).value());
    const bool thread = config->text(variable::kProgress) == "thread";
    std::vector<Device> all = {host.value()};
    all.insert(all.end(), devices.begin(), devices.end());
    ContextParts parts{std::move(config.value()), std::move(log), std::move(factories),
                       std::move(all), thread};
    Result<std::unique_ptr<Context>> context = Context::create(std::move(parts));
    if (!context.ok()) throw std::runtime_error(std::string(context.status().text()));
    context_ = std::move(context).value();
    Result<std::unique_ptr<Bootstrap>> bootstrap =
        bootstrap_from_callbacks(context_->config(), context_->log(),
                                 hetcomm_test::local_bootstrap_options(store, rank, size));
    if (!bootstrap.ok()) throw std::runtime_error(std::string(bootstrap.status().text()));
    JobOptions options;
    options.name = "test";
    options.deadline_ns = now_ns() + 30'000'000'000;
    options.first_sequence = first_sequence;
    Result<std::unique_ptr<Communicator>> communicator =
        Communicator::create(*context_, **bootstrap, options);
    if (!communicator.ok()) throw std::runtime_error(std::string(communicator.status().text()));
    communicator_ = std::move(communicator).value();
  }

  // Starts a one-sided access, with a notification if |notify|.
  Operation* access(OperationKind kind, const AccessArguments& access, void* data, uint64_t size,
                    bool notify = false) {
    return this->access(kind, access, hetcomm_buffer_host(data, size), notify);
  }
  // Starts an access to |data|. A null address means that there is no buffer.
  Operation* access(OperationKind kind, const AccessArguments& access,
                    const hetcomm_buffer_t& buffer, bool notify = false) {
    const bool some = buffer.memory != nullptr || buffer.offset != 0;
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.flags = notify ? HETCOMM_OPERATION_NOTIFY : 0;
    std::string text;
    Operation* operation = nullptr;
    const int peer = access.remote->rank();
    const Code code = communicator_->poster().post(
        {kind, peer, 0, 0, &buffer, some ? size_t{1} : 0, &options, false, &access}, &operation,
        &text);
    if (code != Code::kOk) throw std::runtime_error(text);
    return operation;
  }

  Context& context() { return *context_; }
  Communicator& communicator() { return *communicator_; }
  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }

  // Starts a message operation. A |timeout_ns| of 0 means the default.
  Operation* post(OperationKind kind, int peer, uint64_t tag, void* data, uint64_t size,
                  uint64_t timeout_ns = 0) {
    return post(kind, peer, tag, hetcomm_buffer_host(data, size), timeout_ns);
  }
  Operation* post(OperationKind kind, int peer, uint64_t tag, const hetcomm_buffer_t& buffer,
                  uint64_t timeout_ns = 0) {
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = timeout_ns;
    std::string text;
    Operation* operation = nullptr;
    const Code code =
        communicator_->poster().post({kind, peer, tag, 0, &buffer, 1, &options}, &operation, &text);
    if (code != Code::kOk) throw std::runtime_error(text);
    return operation;
  }
  // Waits for the operation, releases it and returns its outcome. Checks that HETCOMM_TIMEOUT is
  // respected, with a margin for loaded machines.
  Status finish(Operation* operation) {
    const uint32_t generation = operation->generation();
    const uint64_t promised_ns = context_->config().number(variable::kTimeout);
    const uint64_t limit_ns = std::min(promised_ns, kMaxPatienceNs) + kMarginNs;
    const bool done = context_->engine().wait(
        now_ns() + limit_ns, [&] { return operation->is(generation, OperationState::kComplete); });
    if (!done) return Status(Code::kInternal, "the operation never ended");
    if (!operation->claim(generation)) return Status(Code::kInternal, "somebody else has it");
    Status status = operation->outcome.code == Code::kOk
                        ? Status()
                        : Status(operation->outcome.code,
                                 operation->outcome.text ? *operation->outcome.text : "");
    context_->engine().pool().recycle(operation);
    return status;
  }

 private:
  std::unique_ptr<Context> context_;
  std::unique_ptr<Communicator> communicator_;
};

inline void run_core_job(int size, const std::string& settings,
                         const std::function<Factories(int rank)>& factories,
                         const std::function<void(CoreMember&)>& body,
                         const std::function<std::vector<Device>()>& devices = {},
                         const std::function<std::string(int rank)>& own_settings = {},
                         uint32_t first_sequence = 0) {
  hetcomm_test::LocalStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        CoreMember member(store, rank, size,
                          own_settings ? settings + own_settings(rank) : settings, factories(rank),
                          devices ? devices() : std::vector<Device>(), first_sequence);
        body(member);
        const Status met = barrier(member.communicator(), 20'000'000'000);
        EXPECT_TRUE(met.ok()) << "rank " << rank << ": " << met.text();
        member.communicator().flush(5'000'000'000);
      } catch (const std::exception& exception) {
        ADD_FAILURE() << "rank " << rank << ": " << exception.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace hetcomm::test
