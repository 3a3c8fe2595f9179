#include "tools/info/help.h"

#include "tools/info/collect.h"
#include "tools/info/print.h"

namespace hetcomm_info {
namespace {

constexpr const char* kBeforeEnvironment = R"(NAME
  hetcomm_info - what this hetcomm, this machine and this environment offer

SYNOPSIS
  hetcomm_info [--variables] [--devices] [--transports] [--format text|json]
  hetcomm_info explain [--peer P] [--device D] [--format text|json]
  hetcomm_info topology [--file FILE] [--format text|json|svg]
  hetcomm_info reshard SOURCE DESTINATION [--shape B,S,H] [--strategy NAME] [--links FILE]
               [--ranks-per-host N] [--same-ranks] [--format text|json|svg]
  hetcomm_info schedule NAME|FILE [--ranks N] [--micro-batches N] [--chunks N] [--warmups N,...]
               [--forward TIME,...] [--backward TIME,...] [--weight-grad TIME,...]
               [--boundary STAGE=TIME[+TIME],...] [--overlap PERCENT] [--epsilon PERCENT]
               [--memory-limit N] [--in-flight N,...] [--order loop|v] [--effort N]
               [--level compute|transfers|waits] [--receives-ahead N] [--send-buffers N]
               [--send-waits at_once|before_reuse] [--routes FILE] [--reductions]
               [--traces FILE,... [--may-split]] [--pipeline N]
               [--links FILE [--nics NAME,...] [--gradient-bytes N,...]]
               [--format text|json|svg|csv|trace|plan]
  hetcomm_info --help | --version

DESCRIPTION
  Without a command, prints one page: the transports, the devices, the variables that are not at
  their default, and the library's version and build. A transport that cannot be used here is listed
  with the reason. Nothing is connected and no data is sent.

  explain shows which path a message would take between two ranks, and why: a line for each
  candidate with its score or the reason why it lost; then a table of every pairing of the two
  sides' network interfaces, with distance, rate and share, and what it carries or why it is not
  used. Under mpirun, torchrun or a script that sets
  RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT all processes are one job, and rank 0 prints how each
  rank reaches the others. Otherwise it starts two ranks on this host and shows the choice between
  them, which tells how processes of one host would talk.

  topology shows how this machine is built: a tree of NUMA nodes, PCIe switches, accelerators and NICs,
  and a matrix that says how far each NIC is from each accelerator, and which one its data uses.

  reshard shows how a tensor would go from one parallel layout to another: who sends what to whom.
  A layout is DxS: the batch is cut in D pieces, the sequence in S, on D * S ranks; rR adds R
  replicas, and pP makes it a sum of P terms: 4x1, 2x2r2. The ranks of the destination come after
  those of the source. The plan is proved before it is shown.

  schedule makes, reads, checks and simulates a pipeline schedule. NAME is gpipe, 1f1b, eager-1f1b,
  virtual-1f1b, h-1f1b, four-phase, zb-h1, zb-h2, looped-bfs, interleaved-1f1b, interleaved-zb, zb-v,
  dualpipe-v, forward-only, or arranged: a search under --memory-limit. A FILE has a '.' or '/' in its
  name: a schedule in PyTorch's CSV form, a question in JSON, or a pipeline plan, which is checked;
  the last two take no options but --format, and a plan with --forward or --traces those of times.
  With times it says how long an iteration takes, how much of it is idle, and what the longest path
  waits for. With a plan and the --links between its hosts it simulates all pipelines at once, with
  their transfers and the sums of their gradients. With the traces of a run it measures the times, draws the run below the forecast, and
  proposes a better schedule: within --memory-limit, else with as many activations as now; --format
  plan prints the plan with it. Given times are then those that were known; only those that moved by
  more than 10 % count.

OPTIONS
  --variables      Every variable with its default, the value in force and its meaning.
  --devices        The devices only.
  --transports     The transports only. Several of these three add up.
  --format FORMAT  text (the default), or json: one object with version, abi_version, build and the
                   sections asked for (all three without a choice), each an array of objects.
                   explain prints an array with one object per rank. topology prints a document
                   that HETCOMM_TOPOLOGY reads, here or on another machine; svg is a picture.
  --peer P         explain: the path from each rank to rank P only; otherwise to every other rank.
  --device D       explain: for data in memory of device D, a number of --devices; 0, the default,
                   is host memory.
  --file FILE      topology: the machine that FILE describes in place of this one. It is hwloc's, as
                   `lstopo machine.xml` writes it, or one that topology --format json printed.
  --shape B,S,H    reshard: batch, sequence and hidden size of the tensor, in float32 (16,16,65536).
  --strategy NAME  reshard: auto (the default), direct, leader, gather_p2p_scatter,
                   sendrecv_allgather or bsr.
  --links FILE     reshard: the links between hosts, as `hetcomm_bench links --format json` writes
                   them. With them auto compares forecasts; json has them. schedule: all pipelines
                   of a plan are simulated at once over these links, between the hosts of its ranks.
  --ranks-per-host N
                   reshard: so many ranks are on each host of that file, in its order (1).
  --same-ranks     reshard: both layouts begin with rank 0.
  --ranks N, --micro-batches N
                   schedule: their numbers.
  --chunks N       schedule: stages of each rank, where the schedule leaves a choice.
  --warmups N,...  schedule: forward steps before the first backward step, for each stage.
  --forward TIME,..., --backward TIME,...
                   schedule: time of a stage's step for one micro-batch, such as 12.5ms; one for all
                   stages or one for each; with --links those of all pipelines, one after the other. A
                   backward step takes twice the forward step unless given.
  --weight-grad TIME,...
                   schedule: the part of a backward step that the gradient of the weights takes; half
                   unless given.
  --boundary STAGE=TIME[+TIME],...
                   schedule: how long a micro-batch's data occupies the link behind STAGE, and how
                   much later it arrives. virtual-1f1b takes these boundaries for the slow ones.
  --overlap PERCENT
                   schedule: the part of the shorter step of a pair that is hidden (0).
  --epsilon PERCENT
                   schedule: h-1f1b hides no boundary of at most this part of a stage's time (0).
  --memory-limit N schedule: the activations that a rank may hold.
  --order ORDER    schedule: arranged deals stages to ranks in a loop, or in a v that turns back at the
                   last rank.
  --effort N       schedule: simulated steps that arranged may take (50000000: some seconds).
  --level LEVEL    schedule: transfers adds sends and receives, waits adds waits too.
  --receives-ahead N
                   schedule: how many steps ahead a receive is posted (1).
  --send-buffers N schedule: waits for a send before this many later ones (1).
  --send-waits WHEN
                   schedule: at_once waits for a send right behind it, as PyTorch from 2.15 on wants
                   it; before_reuse, unless given, before its buffer is used again.
  --routes FILE    schedule: a JSON list with the ways of transfers over links that several share, and
                   through host memory (pipeline/README.md).
  --reductions     schedule: adds the reductions of gradients, for which FILE may have a way.
  --in-flight N,...
                   schedule: items that may have left one side of a boundary and not been taken on
                   the other; one for all boundaries or one for each. So many that no step waits for
                   room unless given.
  --traces FILE,...
                   schedule: the traces of a run, as hetcomm_pipeline_trace() or Pipeline.trace() gives
                   them, at least one for each rank of the schedule.
  --may-split      schedule: a proposed schedule may split backward steps, although the one that ran
                   does not.
  --pipeline N     schedule: which one of a plan with several is simulated (0).
  --gradient-bytes N,...
                   schedule: with --links, the bytes of the gradients of an item of the model, such as
                   64M (K, M and G are powers of 1024); one for all items or one for each. Their sums
                   use the links, too.
  --nics NAME,...  schedule: with --links, the network interface of each rank of the plan; an empty
                   name, or none: the first one of the rank's host.
  -h, --help       This text.
  --version        The version only.

ENVIRONMENT
  RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
                   explain: this process's rank, the number of ranks, and where rank 0 is.

)";

constexpr const char* kAfterEnvironment = R"(
EXIT STATUS
  0  Success.
  1  The library refused something; standard error names the variable, the rank or the call.
  2  The command line is wrong.

EXAMPLES
  hetcomm_info
      What is usable here; the first thing to attach to a bug report. Secrets are never shown.

  HETCOMM_DEVICES=sim-handle:bandwidth=10G:latency=2us hetcomm_info --devices
      Whether a device list is understood as it was meant.

  hetcomm_info --transports --format json | jq '.transports[] | select(.usable | not)'
      The transports that cannot be used, for a script.

  hetcomm_info explain
      How two processes of this host would talk.

  hetcomm_info topology --format svg > machine.svg
      The machine as a picture.

  hetcomm_info reshard 4x1 1x4 --format svg > plan.svg
      Who sends what to whom, as a picture.

  hetcomm_info schedule h-1f1b --ranks 4 --micro-batches 16 --forward 10ms --boundary 1=5ms+20ms
      How long an iteration takes with a slow link between stages 1 and 2, and what it waits for.

  hetcomm_info schedule plan.json --links links.json --forward 10ms --gradient-bytes 64MiB
      How long a step of a plan takes, with the transfers and the sums of all its pipelines.

  hetcomm_info schedule plan.json --traces rank0.json,rank1.json --format svg > run.svg
      A run below its forecast.

  mpirun -n 2 --host node1,node2 hetcomm_info explain --device 1
      How these two hosts would talk, and over which NICs the data of device 1 would go.

  torchrun --no-python --nnodes 2 --nproc-per-node 1 --node-rank 0 --master-addr node1 \
      hetcomm_info explain
      The same by torchrun; run it with --node-rank 1 there.
)";

}  // namespace

std::string help_text(size_t width) {
  std::string text = kBeforeEnvironment;
  std::vector<std::vector<std::string>> rows;
  for (const VariableRow& row : describe_variables()) rows.push_back({row.name, row.meaning});
  if (!rows.empty()) text += table(rows, width);
  return text + kAfterEnvironment;
}

}  // namespace hetcomm_info
