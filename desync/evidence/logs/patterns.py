"""The table of what is understood in a log: by content, never by version or by the source line, which moves."""

from __future__ import annotations

import re

HEAD = re.compile(r"\[([EWIF])(?:(\d{3,4}) (\d\d):(\d\d):(\d\d)\.(\d{1,9}) )? ?([\w./-]{1,80}\.cpp):\d+\]")
"""The head of a line of torch's C++; month (without zero), day and time of day from torch 2.4 on."""

GROUP = re.compile(
    r"\[PG (?:ID (?P<local>\d{1,9}) PG GUID (?P<guid>[^\s()\[\]]{0,200})(?:\((?P<named>[^()\[\]]{0,200})\))?"
    r"|(?P<number>\d{1,9})(?: \((?P<described>[^()\[\]]{0,200})\))?) Rank (?P<rank>\d{1,7})\]"
)

XCCL = "ProcessGroupXCCL"
"""Intel's group (torch-xpu-ops, ``ProcessGroupXCCLMonitor.cpp``) writes as NCCL's of torch 2.6 and newer does, but for three
words: ``Work(`` for ``WorkNCCL(``, ``enqueued xccl work`` in the dump signal, ``due to ProcessGroupxccl watchdog hang``."""
TIMEOUT = re.compile(
    r"(?:\[Rank (?P<rank>\d{1,7})\]:? )?(?P<how>Watchdog c|C)aught collective operation timeout: Work(?:NCCL)?\("
    r"SeqNum=(?P<seq>\d{1,18}), OpType=(?P<op>\w{1,60}),"
    r"(?: NumelIn=(?P<numel_in>\d{1,20}), NumelOut=(?P<numel_out>\d{1,20}),)?(?: TensorShape=\[(?P<shape>[\d, ]{0,200})\],)?"
    r"[^()]{0,200}Timeout\(ms\)=(?P<limit>\d{1,12})\) ran for (?P<ran>\d{1,15}) milliseconds"
)
STATUS = re.compile(
    r"(?:failure detected by watchdog at work sequence id: (?P<new>\d{1,18}) PG status: last enqueued work"
    r"|Timeout at NCCL work: (?P<old>\d{1,18}), last enqueued NCCL work)"
    r": (?P<enqueued>-?\d{1,20}), last completed (?:NCCL )?work: (?P<completed>-?\d{1,20})"
)
DUMP = re.compile(
    r"Received a (?:dump signal due to a collective timeout|(?:global )?timeout(?: signal)?) from "
    r"(?P<who>this local rank|another rank|\s*rank \d{1,7})"
    r".{0,200}?Last enqueued (?:NCCL|xccl) work: (?P<enqueued>-?\d{1,20}), last completed (?:NCCL|xccl) work: "
    r"(?P<completed>-?\d{1,20})"
)
OBSERVED = "Observed flight recorder dump signal from another rank"

DESYNC_LAGGING = re.compile(
    r"\[(?P<ranks>[\d, ]{1,4000})\] finished collective #(?P<finished>\d{1,18}),"
    r" but didn't join collective #(?P<missing>\d{1,18})"
)
DESYNC_NEVER = re.compile(r"ranks \[(?P<ranks>[\d, ]{1,4000})\].{0,200}never joined any")

STACK_HEAD = "Stack trace of the failed collective:"
STACK_FRAME = re.compile(r"\s*#(\d{1,3}) (\S{1,300}) from (.{1,1000}):(\d{1,7})\s*$")

FINGERPRINT = re.compile(
    r"CollectiveFingerPrint\(SequenceNumber=(\d{1,18}),? ?OpType=(\w{1,60})"
    r"(?:, TensorShape=(?P<shapes>\[[\d, \[\]]{0,1000}\]))?(?:, TensorDtypes=(?P<dtypes>[\w, ]{0,400}?), TensorDeviceTypes)?"
)
RUNNING = re.compile(r"\[Rank (\d{1,7})\] Running collective: CollectiveFingerPrint")
REFUSED = "Detected mismatch between collectives on ranks"
MISMATCH = re.compile(
    r"Detected mismatch between collectives on ranks\. Rank (\d{1,7}) is running collective: "
    r"(CollectiveFingerPrint.{0,2000}?)(?:, but Rank (\d{1,7}) is running collective: (CollectiveFingerPrint.{0,2000})|$)"
)

BARRIER_MISSING = re.compile(r"\[Rank (\d{1,7})\]: Ranks? ([\d, ]{1,4000}) failed to pass monitoredBarrier in \d{1,15} ms")
BARRIER_REACHED = re.compile(r"Rank (\d{1,7}) successfully reached monitoredBarrier")

TRACEBACK = re.compile(r"^(?:Traceback|Exception in thread.{0,100}Traceback) \(most recent call last\):")
FRAME = re.compile(r'^\s{1,12}File "(.{1,1000})", line (\d{1,9}), in (.{1,300})$')
RAISED = re.compile(
    r"^((?:[A-Za-z_]\w{0,100}\.){1,8}(?:[A-Z]\w{0,100}|[a-z]{0,12}(?:error|timeout|exception))"
    r"|(?=[A-Z])\w{0,100}(?:Error|Exception|Warning|Interrupt|Exit|Iteration|Group))"
    r"(?:: (.*))?$"
)
"""An exception: with its module, or one of Python's own; other capitalised words may be of another rank's line."""
SPAWNED = re.compile(r"^-- Process (\d{1,6}) terminated with the following error:")
"""torch.multiprocessing.spawn hands on the traceback of one of its processes, whose number is its rank."""
LAST_CALL = "(most recent call last)"
BOX_TITLE = re.compile(r"^([ ]{0,200})([╭┌+][─-]{1,300} Traceback \(most recent call last\) [─-]{1,300}[╮┐+])")
"""The upper edge of a box of rich's; of plain characters where the stream can show no others."""
BOX_FRAME = re.compile(r"^([^\s:].{0,1000}?):(\d{1,9}) in (\S.{0,299})$")
"""A frame in it.  rich writes ``in NAME:LINE`` for one whose file is not on the disk: that says no place, and is left out."""
TREE_HEAD = re.compile(r"^( {2,80})\+ Exception Group Traceback \(most recent call last\):")
TREE_MARGIN = re.compile(r"^( {2,80})([|+])(?: |(?=-)|$)")
TREE_NUMBER = re.compile(r"\+(?:-\+)?-{10,40} \d{1,6} -{10,40}$")
TREE_END = re.compile(r"\+-{20,60}$")
GROUP_RAISED = re.compile(r"^(?:\w{1,100}\.){0,8}(?:Base)?ExceptionGroup\b|\(\d{1,9} sub-exceptions?\)$")
"""The line of a group itself, which says nothing beside its leaves."""
FOLLOWS = re.compile(r"^\s{0,200}(?:During handling of the above exception|The above exception was the direct cause)")
UNUSED = re.compile(r"(Parameter(?:s| indices) which did not receive grad for rank (\d{1,7}): .{0,2000})")
RANK_IN_MESSAGE = re.compile(
    r"^\[Rank (\d{1,7})\]|^Rank (\d{1,7}) successfully reached|on rank: (\d{1,7})[,. ]|did not receive grad for rank (\d{1,7}):"
)

FAILED = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,6}) \(pid: (\d{1,9})\)")
SPAWNED_ENDED = re.compile(
    r"ProcessExitedException: process (\d{1,6}) terminated with (?:signal (SIG[A-Z0-9]{1,10})|exit code (\d{1,3}))"
)
CLOSING = re.compile(r"Sending process (\d{1,9}) closing signal (\w{1,12})")
FORCED = re.compile(r"Unable to shutdown process (\d{1,9}) via [\w.]{1,20}, forcefully exitt?ing via [\w.]{1,20}")
RESTART = re.compile(r"[Ww]orker group .{0,60}[Ww]ill restart|Restarting worker group|restarting worker group")
LAUNCH = "Setting OMP_NUM_THREADS"
LAUNCHER = (LAUNCH, "distributed/elastic", "distributed.elastic")
SUMMARY_ROOT = "Root Cause (first observed failure):"
SUMMARY_OTHERS = re.compile(r"^\s*Failures:\s*$")
SUMMARY_LINE = re.compile(r"^\s{1,8}(time|host|rank|exitcode|traceback)\s{0,12}: (.{1,300})$")
SUMMARY_RANK = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,6})\)")
SUMMARY_CODE = re.compile(r"(-?\d{1,5}) \(pid: (\d{1,9})\)")

JOINING = re.compile(
    r"(?:Waiting in store based barrier to initialize process group for (?:rank: (?P<rank>\d{1,7})|(?P<waited>\d{1,9}) seconds)"
    r"|(?P<gave_up>Timed out initializing process group in store based barrier) on rank: (?P<late>\d{1,7}))"
    r".{0,60}?store_based_barrier_key:(?P<key>\d{1,9}) \(world_size=(?P<world>\d{1,7}),"
    r" (?:worker_count|num_workers_joined)=(?P<came>\d{1,7})"
)
CLIENTS = re.compile(r"Timed out after (\d{1,9}) seconds waiting for clients\. (\d{1,7})/(\d{1,7}) clients joined")

COMMUNICATOR = re.compile(r"ncclCommInitRank\w* comm \S{1,40} rank (\d{1,7}) nranks (\d{1,7}) .{0,200}Init COMPLETE")
RAY_WORKER = re.compile(r"\((?:node_id=\w{1,100}, )?ip=([\w.:]{1,60}), pid=(\d{1,9})\) world_rank=(\d{1,7})\b")
"""Ray Train's list of the processes that it has started."""
NETWORK_WORD = "NCCL WARN "
NETWORK = re.compile(  # to be matched once, at the first NETWORK_WORD of a line
    r"NCCL WARN .{0,40}?(?:Got completion from peer .{1,80}?(?:error|status=) ?(?:12|5|10|11)\b|"
    r"Got async (?:fatal )?event ?:.{0,40}(?:port error|fatal)|[Aa]sync error event.{0,80}|.{0,60}IBV_EVENT_PORT_ERR|"
    r".{0,120}(?:No route to host|Network is unreachable|Connection timed out|Software caused connection abort))"
)
NETWORK_BACK = re.compile(r"NCCL (?:WARN|INFO) .{0,60}port active")
PEER_GONE = re.compile(r"socketProgress: Connection closed by remote peer|Connection closed by remote peer")
NCCL_ERROR = re.compile(r"(NCCL error(?: in)?: .{1,200}|NCCL communicator was aborted.{0,100})")
CUDA_ERROR = re.compile(r"((?:CUDA|HIP) error: .{1,200}|CUDA driver error: .{1,100})")
HEARTBEAT = re.compile(
    r"Heartbeat monitor timed out!|detected no heartbeat of its watchdog|watchdog got stuck for \d+ seconds|"
    r"due to ProcessGroup(?:NCCL|xccl) watchdog hang"
)
GIL = "Could not acquire GIL within"

NUMBERED = re.compile(r"^\[(\d{1,6})\] ", re.MULTILINE)
LABEL = re.compile(r"^ {0,6}(\d{1,5}): ", re.MULTILINE)
KERNEL = re.compile(r"(?:oom-kill:.{0,400}\bpid=(\d{1,9})|Killed process (\d{1,9}) \()")
GPU_FAULT_WORD = "NVRM: Xid (PCI:"
GPU_FAULT = re.compile(
    r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]{4,20})\): (?P<code>\d{1,4})\b(?:, pid=(?:(?P<pid>\d{1,9})\b|[^,]{1,40}))?"
)
"""NVIDIA's driver in the kernel's log; to be matched at GPU_FAULT_WORD.  Older drivers name no process, and newer ones write
``pid='<unknown>'`` at times."""
KERNEL_HEAD = re.compile(r"^\s*$|(?:([\w.-]{1,100}) )?\bkernel: (?:\[[ \d.]{3,20}\] )?$|^(?:<\d{1,3}>)?\[[\w :.+-]{3,40}\] $")
"""What stands in front of a line of the kernel's: nothing, the journal's head (with the host), or dmesg's time."""
OWN_XIDS = frozenset({13, 31, 43, 45})
"""Codes that a program's own mistake, or its end, brings about as a rule: NVIDIA's table names the application first."""
CANCELLED = re.compile(
    r"error: (\*\*\* (?:STEP|JOB) \S{1,60} ON \S{1,300} CANCELLED AT \S{1,40}(?: DUE [Tt][Oo] [\w ,.-]{1,100})? ?\*\*\*)"
)
"""Slurm's words at the end of a job that it, or somebody with scancel, has ended."""
OOM_EVENTS = re.compile(r"Detected (\d{1,6}) oom_kill event")
SRUN = re.compile(r"srun: error: ([\w.-]{1,100}): tasks? ([\d,-]{1,400}): (.{1,80})")
SRUN_END = re.compile(r"(Segmentation fault|Aborted|Bus error|Floating point exception|Killed|Exited with exit code (\d{1,3}))")
DEATH_SIGNAL = re.compile(
    r"Received (?:Signals\.)?(\d{1,2}|SIG[A-Z]{2,5}) death signal|SignalException: Process \d{1,9} got signal: (\d{1,2})"
)
"""torchrun was sent a signal, and ends its workers."""
RETURN_CODE = re.compile(r"launch\.py:\d{1,6}:\w{1,40}\] .{0,4000}exits with return code = (-?\d{1,3})\s*$")
"""DeepSpeed's launcher on the first of its processes that failed.  The command in it is the last one started."""
POD_NAME = re.compile(r"^Name: {1,60}(\S{1,260})\s*$")
POD_MEMORY = re.compile(
    r"^\s{0,80}(?:- )?(?:Reason: {1,60}|\"?reason\"?: \"?)OOMKilled\b|^(?P<pod>[\w.-]{1,260}) +\d{1,4}/\d{1,4} +OOMKilled "
)
"""Kubernetes on a container: in ``kubectl describe``, the pod as YAML or JSON, or the table of pods."""
SHELL_END = re.compile(
    r"^(?:zsh: |[\w./+-]{1,200}: (?:line )?\d{1,9}: {1,12}(?:\d{1,9} {1,12})?|\[\d{1,4}\][+-]? {1,12})?"
    r"(?P<how>Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception|Killed"
    r"|segmentation fault|bus error|abort|illegal hardware instruction|floating point exception|killed)"
    r"(?: {1,40}\(core dumped\))?(?P<command> {2,40}\S.{0,1000})?\s*$"
)
"""A shell's words (bash, dash, zsh) on a program that a signal has ended."""
MPIRUN_END = re.compile(r"process rank (\d{1,7}) with PID (\d{1,9}) on node ([\w.-]{1,100}) exited on signal (\d{1,3})")
OUT_OF_MEMORY = re.compile(r"(?:CUDA|HIP|XPU) out of memory|ran out of memory|OutOfMemoryError")
GPU = re.compile(r"\(GPU (\d{1,4});|GPU (\d{1,4}) has a total capac")
WORLD = re.compile(r"\bworld[_ ]size[=: ]{1,3}(\d{1,7})\b", re.IGNORECASE)
TORCH = re.compile(r"\btorch[=/: ]{1,2}(\d+\.\d+(?:\.\d+)?)")
REPEATED = re.compile(r"\[repeated (\d{1,7})x across cluster\]")

BAR = re.compile(r"(\d{1,3})%\|[^|\r\n]{0,200}\| (\d{1,12})/(\d{1,12}) \[")
STEPS = re.compile(r"\b(?:iteration|iter|step|epoch)\s{1,8}(\d{1,12})\s{0,4}/\s{0,12}(\d{1,12})\b", re.IGNORECASE)
DONE = re.compile(
    r"\btraining (?:is )?(?:complete|completed|finished|done)\b|\bfinished training\b|\bend of run\b|^\s*training time |"
    r"\btrain(?:ing)? (?:run )?ended\b|\bafter training is done\b|\ball done\b|\bjob (?:completed|finished)\b|"
    r"`?\btrainer\.fit`? stopped: `?max_(?:epochs|steps)=\d{1,12}`? reached|"
    r"['\"]?\btrain_runtime['\"]?\s{0,40}[:=]\s{0,10}\d[\d.:]{0,20}|"
    r"\*{3,8} train metrics \*{3,8}|^wandb: .{0,10}(?:view run|synced|run summary)"
)
"""With these (in small letters) a program says that its work is done.  They are looked for only at a log's end and before a
late failure, in the lines that hold one of DONE_WORDS."""
TESTS_BEGIN = b"= test session starts ="
TESTS_PASSED = re.compile(
    r"=* ?(\d{1,7} passed(?:, \d{1,7} (?:skipped|deselected|xfailed|xpassed|warnings?|rerun)){0,6} in [\d.]{1,12}s)\b"
)
"""pytest's last line where nothing failed."""
DONE_OF_ALL = re.compile(r"^wandb: |\bjob (?:completed|finished)\b")
"""Of these, what is printed after a crash as well: the script that runs the job says so whatever became of it."""
UNDESTROYED = re.compile(
    r"destroy_process_group\(\) was not called before program exit|process group has NOT been destroyed before"
)
"""torch's warning (2.4 and newer) in one process that ends, whether its work is done or it gives up."""
AFTERMATH = re.compile(
    r"frame #\d|\.cpp:\d|\b(?:srun|slurmstepd): |^\s*#\d{1,3} |terminate called|what\(\): |Exception raised from "
)
"""Lines that follow an error of themselves: they do not say that the job went on."""
WORK = re.compile(r"(?!Traceback|During handling|The above exception|wandb: )\S")
"""A line that can be of a program's work: no part of a traceback, and not what is said at an exit."""
TAKEN_DOWN = "taking the entire process down"
TERMINATED = "terminate called after throwing"
NO_EXCEPTION = "terminate called without an active exception"
SIZES_DIFFER = re.compile(r"op\.preamble\.length <= op\.nbytes\. \d{1,20} vs \d{1,20}")
JOINED = re.compile(r"Completed store-based barrier for key:\s?store_based_barrier_key:(\d{1,9})")
NO_SERVER = re.compile(r"The client socket has timed out after .{1,100}")
DONE_WORDS = (
    *("complete", "finished", "done", "end of run", "training time", "ended", "wandb: "),
    *("stopped: ", "train_runtime", "train metrics"),  # Lightning's and Hugging Face's trainers
)
