"""A job's life: what each event changes, and which orders to the supervisors follow.

No clock and no I/O here: every entry takes ``now``; orders wait in ``orders`` until the controller has committed the
new state and carries them out.
"""

from __future__ import annotations

import signal

from resilient_launch.cluster.fake import arrays
from resilient_launch.cluster.fake.accounting import Accounting
from resilient_launch.cluster.fake.db import Database
from resilient_launch.cluster.fake.model import ArrayTask, Job, JobRequest, JobState, Node, Step, StepNode, exit_code
from resilient_launch.cluster.fake.orders import Order, Orders, place_key
from resilient_launch.cluster.fake.reservations import Reservations
from resilient_launch.cluster.fake.spec import FakeSpec

NO_SUCH_JOB = "Invalid job id specified"
ALREADY_DONE = "Job/step already completing or completed"
IS_PENDING = "Job is pending execution"
DISABLED = "Requested operation is presently disabled"
NOT_NOW = "Job can not be altered now, try again later"


class NotAllowedError(Exception):
    """Slurm's own words for why a request is refused."""


class Lifecycle:
    """Every job and node, and the rules that change them."""

    def __init__(self, spec: FakeSpec, database: Database) -> None:
        self.spec, self.database = spec, database
        self.jobs: dict[int, Job] = {job.job_id: job for job in database.jobs()}
        known = database.nodes()
        self.nodes = {name: known.get(name) or Node(name=name) for name in spec.node_names}
        self.reservations = Reservations(database)
        self.accounting = Accounting(spec, database)
        self.next_id = int(database.meta("next_id") or 1)
        self.orders = Orders(spec.signals)
        self.doomed: dict[str, float] = {}
        """Supervisors of runs that have lost them, and when they are killed. A new controller kills them at once."""
        self.changed: set[int] = set()
        self.must_schedule = True

    # -- entering and leaving the queue

    def find(self, text: str) -> list[Job]:
        """What an id means: ``7``, ``7_3``, ``7_[1-2]``, or with 7 an array's id every task of it."""
        return [job for job in self.jobs.values() if job.is_meant_by(text)]

    def submit_array(
        self, request: JobRequest, numbers: list[int], limit: int, now: float, *, dependency: str = ""
    ) -> int:
        """Queue every task of an array; returns its id, which is also the job id of the last task, as in Slurm."""
        array_id, self.next_id = self.next_id, self.next_id + 1
        *others, last = arrays.tasks(array_id, numbers, limit)
        for task in others:
            self.submit(request, now, array=task, dependency=dependency)
        self.submit(request, now, array=last, job_id=array_id, dependency=dependency)
        return array_id

    def submit(
        self,
        request: JobRequest,
        now: float,
        *,
        array: ArrayTask | None = None,
        job_id: int | None = None,
        dependency: str = "",
    ) -> Job:
        """Queue a job that has been validated."""
        if job_id is None:
            job_id, self.next_id = self.next_id, self.next_id + 1
        self.database.set_meta("next_id", str(self.next_id))
        age = job_id if array is None else array.array_id
        priority = request.priority if request.priority is not None else 4294901760 - age
        job = Job(
            job_id=job_id,
            request=request,
            array=array,
            dependency=dependency,
            submit=now,
            begin=request.begin_time,
            eligible=max(now, request.begin_time),
            priority=0 if request.hold else priority,
            held=request.hold,
            reason="JobHeldUser" if request.hold else "None",
            time_limit_s=request.time_limit_s,
            comment=request.comment,
        )
        self.jobs[job_id] = job
        self._touch(job, schedule=True)
        return job

    def start(self, job: Job, nodes: tuple[str, ...], now: float) -> None:
        """Give a pending job its nodes and run its batch script on the first."""
        request = job.request
        job.state, job.reason, job.description, job.limit_reached = JobState.RUNNING, "None", "", False
        job.start = now
        job.end = now + job.time_limit_s if job.time_limit_s is not None else 0.0
        job.nodes = list(nodes)
        tasks = request.tasks_on(len(nodes))
        job.gpus = {name: self._free_gpus(name)[: request.gpus] for name in nodes}
        shares = (self.spec.cpus if request.exclusive else count * request.cpus_per_task for count in tasks)
        job.cpus = dict(zip(nodes, shares, strict=True))
        place = StepNode(node=nodes[0], num_tasks=1, first_rank=0)
        self.add_step(job, Step(name="batch", command="batch", nodes=[place], start=now))

    def add_step(self, job: Job, step: Step) -> None:
        """Record a step and order its supervisors to be started."""
        job.steps.append(step)
        for place in step.nodes:
            place.launched = True
            self.orders.add(Order(do="launch", key=place_key(job, step, place)))
        self._touch(job)

    def requeue(self, job: Job, now: float, *, hold: bool = False) -> None:
        """``scontrol requeue``. Raises NotAllowedError."""
        if not job.request.requeue:
            raise NotAllowedError(DISABLED)
        if job.is_pending:
            raise NotAllowedError(IS_PENDING)
        was_over, was_completing = job.is_over, job.completing
        job.run_state = JobState.REQUEUED
        if not was_over and not was_completing:
            job.run_end = now
        self.back_to_queue(job)
        if hold:
            self._hold(job, "JobHeldUser", "job requeued in held state")
        if was_over:
            self.database.save_run(job)
            self._reset(job, now)
        elif not was_completing:
            self.terminate(job, now, " DUE TO JOB REQUEUE")
        self._touch(job, schedule=True)

    def hold(self, job: Job, *, by_admin: bool) -> None:
        """``scontrol hold``. Raises NotAllowedError unless it is pending."""
        if not job.is_pending:
            raise NotAllowedError("Job is no longer pending execution")
        self._hold(job, "JobHeldAdmin" if by_admin else "JobHeldUser", "")
        self._touch(job)

    def release(self, job: Job) -> None:
        """``scontrol release``. Raises NotAllowedError unless it is pending."""
        if not job.is_pending:
            raise NotAllowedError("Job is no longer pending execution")
        job.held, job.priority, job.reason, job.description = False, 4294901760 - job.job_id, "None", ""
        self._touch(job, schedule=True)

    # -- ends that come from outside

    def preempt(self, job: Job, now: float) -> None:
        """A higher job needs the nodes: grace starts, or is over at once. Raises NotAllowedError unless it runs."""
        if not job.is_running:
            raise NotAllowedError(NOT_NOW)
        if job.preempt:
            return
        partition = self.spec.partition(job.request.partition)
        grace_s = partition.grace_s if partition else 0
        job.preempt = now
        job.requeue_owed = grace_s > 0 and self.spec.like != "22.05"
        job.end = min(job.end or now + grace_s, now + grace_s)
        if grace_s == 0:
            self.grace_over(job, now)
        elif self.spec.send_user_signal and job.request.signal and not job.warn_sent:
            self.warn(job)
        else:
            self.orders.signal_steps(job, signal.SIGCONT)
            self.orders.signal_steps(job, signal.SIGTERM)
        self._touch(job)

    def cancel(self, job: Job, uid: int, now: float) -> None:
        """``scancel`` without a signal. Raises NotAllowedError when the job is over already."""
        if job.is_pending and not job.completing:
            job.state, job.run_state, job.cancelled_by = JobState.CANCELLED, JobState.CANCELLED, uid
            job.start = job.end = job.run_end = now
            self._over(job)
        elif job.completing:
            # On its way back to the queue: it stays on its way out, but for good.
            if not job.is_pending:
                raise NotAllowedError(ALREADY_DONE)
            job.state, job.cancelled_by = JobState.CANCELLED, uid
        elif job.is_running:
            job.state, job.run_state, job.cancelled_by = JobState.CANCELLED, JobState.CANCELLED, uid
            job.run_end = now
            self.terminate(job, now, "")
        else:
            raise NotAllowedError(ALREADY_DONE)
        self._touch(job, schedule=True)

    # -- what the supervisors report

    def place_done(self, job: Job, step: Step, place: StepNode, statuses: dict[int, int], now: float) -> None:
        """Every task of a step on one node has ended, and nothing is left of it there."""
        if place.done or place.lost:
            return
        place.statuses.update(statuses)
        place.done = True
        self.orders.add(Order(do="step", key=f"{job.run_key}.{step.name}"))
        self.step_over(job, step, now)

    def task_ended(self, job: Job, step: Step, place: StepNode, statuses: dict[int, int]) -> None:
        """Some tasks of a step have ended on one node."""
        place.statuses.update(statuses)
        self.orders.add(Order(do="step", key=f"{job.run_key}.{step.name}"))
        if step.kill_on_bad_exit and any(statuses.values()) and not step.killed:
            self.orders.signal_step(job, step, signal.SIGKILL)
        self._touch(job)

    def step_over(self, job: Job, step: Step, now: float) -> None:
        if step.end is None and all(place.done or place.lost for place in step.nodes):
            step.end = now
            self.orders.add(Order(do="step", key=f"{job.run_key}.{step.name}"))
            if step.is_batch and job.is_running:
                self._batch_over(job, step.status, now)
            self.settle(job, now)
        self._touch(job)

    def _batch_over(self, job: Job, status: int, now: float) -> None:
        """The batch script ended by itself."""
        job.exit_status, job.run_end = status, now
        text = ""
        if job.requeue_owed:
            job.requeue_owed = False
            job.run_state = JobState.PREEMPTED
            if job.request.requeue:
                job.exit_status = 0
                self.back_to_queue(job)
                self.count_requeue(job)
                text = " DUE TO JOB REQUEUE"
            else:
                job.state = JobState.PREEMPTED
        elif status:
            job.state = job.run_state = JobState.FAILED
            job.reason = "NonZeroExitCode"
            if exit_code(status) > 128 and status & 0x7F:
                job.reason = "JobLaunchFailure"
                if self.spec.like != "22.05":
                    number = status & 0x7F
                    job.description = f"RaisedSignal:{number}({signal.strsignal(number)})"
        else:
            job.state = job.run_state = JobState.COMPLETED
        self.terminate(job, now, text)

    # -- what the clock brings

    def time_out(self, job: Job, now: float) -> None:
        """A running job has reached its time limit."""
        job.state = job.run_state = JobState.TIMEOUT
        job.reason, job.run_end = "TimeLimit", now
        self.terminate(job, now, " DUE TO TIME LIMIT")

    def kill(self, job: Job) -> None:
        """KillWait is over: whatever is left of the run goes."""
        job.kill_at = 0.0
        for step in job.active_steps():
            self.orders.signal_step(job, step, signal.SIGKILL)
        self._touch(job)

    def forget(self, job: Job) -> None:
        """Drop a job that has been over for long; accounting keeps its runs."""
        del self.jobs[job.job_id]
        self.database.delete_job(job.job_id)

    def warn(self, job: Job) -> None:
        """Send the signal that ``--signal`` asked for, once a run."""
        wanted = job.request.signal
        assert wanted is not None
        job.warn_sent = True
        for signum in (signal.SIGCONT, wanted.signum):
            if wanted.batch:
                self.orders.signal_batch(job, signum)
            else:
                self.orders.signal_steps(job, signum)
        self._touch(job)

    def grace_over(self, job: Job, now: float) -> None:
        """The grace time has passed: the run is killed, and the job queued again where it may be."""
        partition = self.spec.partition(job.request.partition)
        job.run_state, job.run_end = JobState.PREEMPTED, now
        if job.request.requeue and not (partition and partition.preempt_mode == "cancel"):
            self.back_to_queue(job)
        else:
            job.state = JobState.PREEMPTED
        self.terminate(job, now, " DUE TO PREEMPTION")

    def abandon(self, now: float) -> None:
        """The cluster goes down for good: every job that is not over is cancelled, whatever its processes do."""
        for job in self.jobs.values():
            if job.is_over:
                continue
            job.state, job.completing, job.cancelled_by = JobState.CANCELLED, False, job.request.uid
            job.run_state = job.run_state or JobState.CANCELLED
            job.end = job.run_end = job.run_end or now
            for step in job.active_steps():
                step.end, step.killed = now, True
            self._over(job)
            self._touch(job)
        self.must_schedule = False

    # -- inside

    def _touch(self, job: Job, *, schedule: bool = False) -> None:
        self.changed.add(job.job_id)
        self.must_schedule |= schedule

    def touch(self, job: Job) -> None:
        """The caller changed the job: keep it, and think again about who may start."""
        self._touch(job, schedule=True)

    def _hold(self, job: Job, reason: str, description: str) -> None:
        job.held, job.priority, job.reason, job.description = True, 0, reason, description

    def count_requeue(self, job: Job) -> None:
        job.batch_requeues += 1
        if job.batch_requeues >= self.spec.max_batch_requeue:
            job.batch_requeues, job.limit_reached = 0, True
            self._hold(job, "JobHoldMaxRequeue", "launch failure limit exceeded requeued held")

    def back_to_queue(self, job: Job) -> None:
        job.state = JobState.PENDING
        job.restarts += 1
        job.warn_sent = False
        job.reason, job.description = "None", ""

    def terminate(self, job: Job, now: float, due: str) -> None:
        """Slurm's way to end a run: a line in the logs, TERM (twice to steps at a limit), KillWait, KILL."""
        job.completing = True
        job.kill_at = now + self.spec.kill_wait_s
        steps = job.active_steps()
        for step in steps:
            if due:
                self.orders.say(job, step, due)
            if not step.is_batch:
                self.orders.add(Order(do="step", key=f"{job.run_key}.{step.name}", text="aborted"))
        if due in (" DUE TO TIME LIMIT", " DUE TO PREEMPTION"):
            self.orders.signal_steps(job, signal.SIGTERM)
        for signum in (signal.SIGCONT, signal.SIGTERM):
            for step in steps:
                self.orders.signal_step(job, step, signum)
        self.settle(job, now)
        self._touch(job)

    def settle(self, job: Job, now: float) -> None:
        """Once nothing of the run is left: free the nodes, and end the job or put it back into the queue."""
        if not job.completing or job.active_steps():
            return
        job.completing, job.kill_at = False, 0.0
        job.end = job.run_end
        self.database.save_run(job)
        self.must_schedule = True
        if job.is_pending:
            self._reset(job, now)
        else:
            self._over(job)

    def _over(self, job: Job) -> None:
        self.database.save_run(job)
        self.orders.add(Order(do="job", key=str(job.job_id)))
        self.must_schedule = True

    def _reset(self, job: Job, now: float) -> None:
        """A requeued job looks like a new one: new submit time, full time limit, no nodes."""
        job.run += 1
        job.run_state, job.run_end = None, 0.0
        job.submit = max(now, float(int(job.submit) + 1)) if int(now) == int(job.submit) else now
        job.start = job.end = job.preempt = 0.0
        job.nodes, job.gpus, job.cpus, job.steps, job.next_step = [], {}, {}, [], 0
        job.exit_status, job.cancelled_by = 0, None
        if job.begin <= now:
            job.begin = now + self.spec.requeue_delay_s
        job.eligible = job.begin
        if not job.held:
            job.reason = "BeginTime" if job.begin > now else "None"

    def _free_gpus(self, name: str) -> list[int]:
        taken = {number for job in self.jobs.values() for number in job.gpus.get(name, ()) if not job.is_over}
        return [number for number in range(self.spec.gpus) if number not in taken]
