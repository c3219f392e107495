// pg-boss: two chained queues, worked in batches of 500; a batch moves its payments with one statement.
import { PgBoss } from 'pg-boss';
import { connections, fail, measure, move, url } from '../common.mjs';

const BATCH = 500;
// After a full batch the next is fetched at once. Without that a queue sleeps out its poll interval after each batch, and
// 500 payments per half second are a figure of the sleep.
const WORK = { batchSize: BATCH, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true, localConcurrency: 2 };

const boss = new PgBoss({ connectionString: url, max: connections });
boss.on('error', fail);
await boss.start();
await boss.createQueue('charge');
await boss.createQueue('business');

let left = 0;
let done;
const ids = (jobs) => jobs.map((job) => job.data.id);
await boss.work('charge', WORK, async (jobs) => {
  await move(ids(jobs), 'WAIT_PAY', 'PAYED');
  await boss.insert('business', jobs.map((job) => ({ data: job.data })));
});
await boss.work('business', WORK, async (jobs) => {
  await move(ids(jobs), 'PAYED', 'BIZ_SUCCESS');
  left -= jobs.length;
  if (left === 0) done();
});

await measure('pg-boss', async (first, count) => {
  left = count;
  const all = new Promise((resolve) => { done = resolve; });
  for (let from = 0; from < count; from += BATCH) {
    const size = Math.min(BATCH, count - from);
    await boss.insert('charge', Array.from({ length: size }, (_, n) => ({ data: { id: first + from + n } })));
  }
  await all;
});
