// DBOS Transact: a durable workflow a payment, with two steps.
import { DBOS } from '@dbos-inc/dbos-sdk';
import { finish, flows, move, payments, url } from '../common.mjs';

const AT_ONCE = 100;
DBOS.setConfig({ name: 'bench', systemDatabaseUrl: url, systemDatabasePoolSize: 16, logLevel: 'error', runAdminServer: false });
const pay = DBOS.registerWorkflow(async (id) => {
  await DBOS.runStep(() => move([id], 'WAIT_PAY', 'PAYED'), { name: 'charge' });
  await DBOS.runStep(() => move([id], 'PAYED', 'BIZ_SUCCESS'), { name: 'business' });
}, { name: 'pay' });
await DBOS.launch();

async function run(first, count) {
  await payments(first, count);
  const began = performance.now();
  let next = first;
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    while (next < first + count) {
      const handle = await DBOS.startWorkflow(pay)(next++);
      await handle.getResult();
    }
  }));
  return (performance.now() - began) / 1000;
}

await run(1, Math.ceil(flows / 20));
const first = 1_000_000;
await finish(first, await run(first, flows), '@dbos-inc/dbos-sdk');
