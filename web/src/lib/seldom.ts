// Coalesces frequent requests for the same work: one run at a time, with a pause in between.

/** Runs `work` on request; requests during a run or the pause after it are combined into one further run. */
export function seldom(work: () => Promise<void>, pauseMs: number): () => void {
  let isBusy = false;
  let isWanted = false;
  const run = async (): Promise<void> => {
    isBusy = true;
    isWanted = false;
    await work().catch(() => undefined);
    setTimeout(() => {
      isBusy = false;
      if (isWanted) void run();
    }, pauseMs);
  };
  return () => {
    isWanted = true;
    if (!isBusy) void run();
  };
}
