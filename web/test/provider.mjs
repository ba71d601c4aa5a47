// An OpenID provider for tests: accepts every user name and derives the groups from it.
// Usage: node provider.mjs PORT CALLBACK
import Provider from 'oidc-provider';

const [port, callback] = process.argv.slice(2);
const issuer = `http://localhost:${port}`;
const provider = new Provider(issuer, {
  clients: [{ client_id: 'caisson', client_secret: 'a secret of the client', redirect_uris: [callback], token_endpoint_auth_method: 'client_secret_post' }],
  pkce: { required: () => true },
  claims: { openid: ['sub'], email: ['email'], groups: ['groups'] },
  cookies: { keys: ['for tests alone'] },
  features: { devInteractions: { enabled: true } },
  findAccount: (_, sub) => ({
    accountId: sub,
    claims: () => ({ sub, email: `${sub}@example.org`, groups: [sub === 'ada' ? 'admins' : 'strangers'] }),
  }),
});
provider.listen(Number(port), '127.0.0.1', () => console.log('listening'));
