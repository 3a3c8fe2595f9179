#include "tools/info/explain.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "tools/common/job.h"
#include "tools/common/launch.h"
#include "tools/common/mpi/bridge.h"
#include "tools/info/handles.h"

namespace hetcomm_info {
namespace {

// The ranks are terminated if they write no output for this time. It exceeds the sum of their own
// deadlines.
constexpr double kSilenceSeconds = 180;
constexpr uint64_t kPatienceNs = UINT64_C(30'000'000'000);

struct Explanation {
  int32_t peer;
  std::string text;
  std::string pairings;  // a table, or JSON
};

struct View {
  int32_t rank = 0;
  int32_t size = 0;
  std::vector<Explanation> peers;
};

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown host";
}

// Splits |text| into lines, without the empty ones.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Calls |write|(capacity, text, size) until the text fits. The text may grow between two calls if a
// connection is established.
template <typename Write>
hetcomm_status_t read_text(Write&& write, std::string* out_text) {
  size_t size = 0;
  std::vector<char> text;
  hetcomm_status_t status = write(size_t{0}, nullptr, &size);
  while (status == HETCOMM_OK && size > text.size()) {
    text.resize(size);
    status = write(text.size(), text.data(), &size);
  }
  if (status == HETCOMM_OK) *out_text = text.empty() ? "" : text.data();
  return status;
}

bool explain_peer(hetcomm_communicator_t* communicator, const Question& question,
                  Explanation* explanation) {
  const int32_t peer = explanation->peer;
  hetcomm_status_t status = read_text(
      [&](size_t capacity, char* text, size_t* size) {
        return hetcomm_communicator_explain(communicator, peer, capacity, text, size);
      },
      &explanation->text);
  if (status == HETCOMM_OK) {
    const int32_t form = question.json ? HETCOMM_TOPOLOGY_JSON : HETCOMM_TOPOLOGY_TEXT;
    status = read_text(
        [&](size_t capacity, char* text, size_t* size) {
          return hetcomm_communicator_explain_pairings(communicator, peer, question.device, form,
                                                       capacity, text, size);
        },
        &explanation->pairings);
  }
  if (status == HETCOMM_OK) return true;
  report_failure(fmt::format("explain rank {}", peer).c_str(), status);
  return false;
}

// Waits for the other ranks, which would otherwise see a rank that leaves early as a lost peer.
bool meet(hetcomm_communicator_t* communicator) {
  const hetcomm_status_t status = hetcomm_communicator_barrier(communicator, kPatienceNs);
  if (status != HETCOMM_OK) report_failure("barrier", status);
  return status == HETCOMM_OK;
}

bool collect_view(hetcomm_communicator_t* communicator, const Question& question, View* view) {
  bool ok = true;
  const std::optional<int32_t> peer = question.peer;
  const int32_t first = peer.value_or(0);
  const int32_t last = peer.has_value() ? *peer : view->size - 1;
  for (int32_t rank = first; rank <= last; ++rank) {
    // A rank explains the path to itself only if that was requested, or if there are no other
    // ranks.
    if (rank == view->rank && !peer.has_value() && view->size > 1) continue;
    Explanation explanation{.peer = rank, .text = {}, .pairings = {}};
    if (explain_peer(communicator, question, &explanation)) {
      view->peers.push_back(std::move(explanation));
    } else {
      ok = false;
    }
  }
  return ok;
}

// --- all ranks' views at rank 0

nlohmann::ordered_json to_json(const View& view, bool json) {
  auto peers = nlohmann::ordered_json::array();
  for (const Explanation& peer : view.peers) {
    nlohmann::ordered_json entry{{"rank", peer.peer}, {"explanation", lines_of(peer.text)}};
    if (json) {
      entry.update(nlohmann::ordered_json::parse(peer.pairings, nullptr, false));
      entry["rank"] = peer.peer;
      entry.erase("peer");
    } else {
      entry["pairings"] = lines_of(peer.pairings);
    }
    peers.push_back(std::move(entry));
  }
  return {{"rank", view.rank}, {"size", view.size}, {"host", host_name()}, {"peers", peers}};
}

std::string dump(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string as_text(const nlohmann::ordered_json& view) {
  std::string text = fmt::format("rank {} of {} on {}\n", view["rank"].get<int32_t>(),
                                 view["size"].get<int32_t>(), view["host"].get<std::string>());
  // Each explanation begins with a line that names the peer.
  for (const auto& peer : view["peers"]) {
    for (const char* const part : {"explanation", "pairings"}) {
      for (const auto& line : peer[part]) text += "  " + line.get<std::string>() + "\n";
    }
  }
  return text;
}

bool wait(hetcomm_status_t posted, hetcomm_request_t* request, const char* what) {
  hetcomm_completion_t completion{};
  if (posted == HETCOMM_OK) posted = hetcomm_request_wait(request, kPatienceNs, &completion);
  if (posted != HETCOMM_OK) {
    report_failure(what, posted);
    return false;
  }
  if (completion.status == HETCOMM_OK) return true;
  std::fprintf(stderr, "hetcomm_info: %s: %s: %s\n", what, hetcomm_status_name(completion.status),
               completion.text);
  return false;
}

bool send_view(hetcomm_communicator_t* communicator, const View& view, bool json) {
  const std::string text = dump(to_json(view, json), -1);
  hetcomm_request_t* request = nullptr;
  const hetcomm_status_t posted = hetcomm_send(
      communicator, 0, 0, hetcomm_buffer_host(const_cast<char*>(text.data()), text.size()), nullptr,
      &request);
  return wait(posted, request, "sending this rank's view to rank 0");
}

bool receive_view(hetcomm_communicator_t* communicator, int32_t rank,
                  nlohmann::ordered_json* out_view) {
  constexpr const char* kWhat = "receiving the views of the other ranks";
  hetcomm_completion_t message{};
  const hetcomm_status_t probed =
      hetcomm_probe(communicator, rank, 0, HETCOMM_EXACT_TAG, kPatienceNs, &message);
  if (probed != HETCOMM_OK) {
    report_failure(kWhat, probed);
    return false;
  }
  std::string text(static_cast<size_t>(message.bytes_sent), '\0');
  hetcomm_request_t* request = nullptr;
  const hetcomm_status_t posted =
      hetcomm_recv(communicator, rank, 0, HETCOMM_EXACT_TAG,
                   hetcomm_buffer_host(text.data(), text.size()), nullptr, &request);
  if (!wait(posted, request, kWhat)) return false;
  *out_view = nlohmann::ordered_json::parse(text, nullptr, false);
  return !out_view->is_discarded();
}

// On rank 0, prints the views of all ranks in rank order. On other ranks, sends |view| to rank 0.
bool print_views(hetcomm_communicator_t* communicator, const View& view, bool json) {
  if (view.rank != 0) return send_view(communicator, view, json);
  bool ok = true;
  auto all = nlohmann::ordered_json::array({to_json(view, json)});
  for (int32_t rank = 1; rank < view.size; ++rank) {
    nlohmann::ordered_json other;
    if (receive_view(communicator, rank, &other)) {
      all.push_back(std::move(other));
    } else {
      ok = false;
    }
  }
  std::string text;
  if (json) {
    text = dump(all, 2) + "\n";
  } else {
    for (const auto& one : all) text += as_text(one);
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return ok;
}

// --- one rank of a job

// Creates the bootstrap of this rank's job. If MPI cannot be used, for example because the tool's
// MPI module is missing, the variables of mpirun may still provide rank and size.
std::string find_job(tools::Launcher launcher, hetcomm_context_t* context,
                     hetcomm_bootstrap_t** out_bootstrap) {
  std::string failure = tools::create_bootstrap(launcher, context, out_bootstrap);
  if (failure.empty() || launcher != tools::Launcher::kMpi) return failure;
  const bool found =
      tools::create_bootstrap(tools::Launcher::kEnvironment, context, out_bootstrap).empty();
  return found ? "" : failure;
}

// Returns whether the context has |device|. Prints an error if it does not.
bool has_device(hetcomm_context_t* context, int32_t device) {
  int32_t count = 0;
  const hetcomm_status_t status = hetcomm_device_count(context, &count);
  if (status != HETCOMM_OK) {
    report_failure("hetcomm_device_count", status);
    return false;
  }
  if (device < count) return true;
  std::fprintf(stderr,
               "hetcomm_info: there is no device %d: hetcomm_info --devices lists those of "
               "HETCOMM_DEVICES, and 0 is host memory\n",
               device);
  return false;
}

int join(tools::Launcher launcher, const Question& question) {
  const Context context = create_context();
  if (context == nullptr) return kFailure;
  const std::optional<int32_t> peer = question.peer;
  hetcomm_bootstrap_t* new_bootstrap = nullptr;
  const std::string failure = find_job(launcher, context.get(), &new_bootstrap);
  const Bootstrap bootstrap(new_bootstrap);
  if (!failure.empty()) {
    std::fprintf(stderr, "hetcomm_info: %s\n", failure.c_str());
    return kFailure;
  }
  hetcomm_communicator_t* new_communicator = nullptr;
  hetcomm_communicator_options_t options{};
  options.struct_size = sizeof(options);
  options.name = "hetcomm_info";
  hetcomm_status_t status =
      hetcomm_communicator_create(context.get(), bootstrap.get(), &options, &new_communicator);
  const Communicator communicator(new_communicator);
  View view;
  if (status == HETCOMM_OK) {
    status = hetcomm_communicator_rank(communicator.get(), &view.rank, &view.size);
  }
  if (status != HETCOMM_OK) {
    report_failure("joining the other ranks", status);
    return kFailure;
  }
  if (peer.has_value() && *peer >= view.size) {
    // All ranks have the same command line, so only rank 0 prints the error.
    if (view.rank == 0) {
      std::fprintf(stderr, "hetcomm_info: there is no rank %d: this job has ranks 0 to %d\n", *peer,
                   view.size - 1);
    }
    return meet(communicator.get()) ? kUsage : kFailure;
  }
  bool ok = meet(communicator.get());
  ok = collect_view(communicator.get(), question, &view) && ok;
  ok = print_views(communicator.get(), view, question.json) && ok;
  return meet(communicator.get()) && ok ? kSuccess : kFailure;
}

// --- two ranks of this tool

int launch(const Question& question) {
  constexpr int kRanks = 2;
  const std::optional<int32_t> peer = question.peer;
  if (peer.has_value() && *peer >= kRanks) {
    std::fprintf(stderr,
                 "hetcomm_info: there is no rank %d: without a launcher, explain starts ranks 0 "
                 "and 1 on this host\n",
                 *peer);
    return kUsage;
  }
  // Detects an error in the environment here, so that it is printed only once, instead of by every
  // rank.
  const Context context = create_context();
  if (context == nullptr) return kFailure;
  if (!has_device(context.get(), question.device)) return kUsage;
  std::vector<std::string> command = {tools::own_path(), "explain", "--device",
                                      std::to_string(question.device)};
  if (question.json) command.insert(command.end(), {"--format", "json"});
  if (peer.has_value()) command.insert(command.end(), {"--peer", std::to_string(*peer)});
  tools::Launch ranks;
  ranks.processes = tools::ranks_on_this_host(command, kRanks);
  ranks.echo_errors = true;
  const std::string failure = tools::run(ranks, kSilenceSeconds, [](std::string_view line) {
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fputc('\n', stdout);
  });
  if (failure.empty()) return kSuccess;
  std::fprintf(stderr, "hetcomm_info: %s\n", failure.c_str());
  return kFailure;
}

}  // namespace

int explain(const Question& question) {
  const tools::Launcher launcher = tools::detect_launcher();
  if (launcher == tools::Launcher::kNone) return launch(question);
  const int status = join(launcher, question);
  // mpi_finish() waits for all ranks. It is skipped after a failure, and the launcher terminates
  // the ranks.
  if (status != kFailure) tools::mpi_finish();
  return status;
}

}  // namespace hetcomm_info
