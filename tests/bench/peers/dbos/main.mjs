// DBOS Transact: a durable workflow a payment, with two steps.
import { DBOS } from '@dbos-inc/dbos-sdk';
import { connections, measure, move, url } from '../common.mjs';

/** 16 and 32 were slower, 300 no faster. */
const AT_ONCE = 100;

DBOS.setConfig({ name: 'bench', systemDatabaseUrl: url, systemDatabasePoolSize: connections, logLevel: 'error' });
const pay = DBOS.registerWorkflow(async (id) => {
  await DBOS.runStep(() => move([id], 'WAIT_PAY', 'PAYED'), { name: 'charge' });
  await DBOS.runStep(() => move([id], 'PAYED', 'BIZ_SUCCESS'), { name: 'business' });
}, { name: 'pay' });
await DBOS.launch();

await measure('@dbos-inc/dbos-sdk', async (first, count) => {
  let next = first;
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    while (next < first + count) await pay(next++);
  }));
});
