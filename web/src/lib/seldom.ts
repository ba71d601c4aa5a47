// Work that many things ask for at once is done one at a time, and not more often than is of use.

/** Does `work` when it is asked for; what is asked for meanwhile, or right after, is done together afterwards. */
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
