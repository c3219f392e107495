-- Bearer tokens of the HTTP API: one merchant each. Only a digest of a token is kept, so whoever reads the table can use none.

create function paylatch.create_api_token(merchant_id text, name text, digest bytea, rate_per_second integer default null)
    returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_field text;
    v_id bigint;
begin
    perform paylatch.require_migrated();
    v_field := case when coalesce(length(merchant_id), 0) not between 1 and 64 then 'merchant_id'
                    when coalesce(length(name), 0) not between 1 and 64 then 'name'
                    when coalesce(octet_length(digest), 0) <> 32 then 'digest'
                    when rate_per_second not between 1 and 1000000 then 'rate_per_second' end;
    if v_field is not null then
        raise exception using errcode = 'PL004', message = format('%s: %s', v_field, case v_field
                when 'digest' then 'give the SHA-256 of the token' when 'rate_per_second' then 'give 1 to 1000000, or null'
                else 'give 1 to 64 characters' end),
            detail = jsonb_build_object('field', v_field)::text;
    end if;
    insert into paylatch.api_token (merchant_id, name, digest, rate_per_second, created_at, created_by)
    values (merchant_id, name, digest, rate_per_second, paylatch.clock(), session_user)
    on conflict do nothing returning token_id into v_id;
    if v_id is null then
        raise exception using errcode = 'PL004', message = 'digest: this token exists', detail = '{"field": "digest"}';
    end if;
    return v_id;
end $$;
comment on function paylatch.create_api_token(text, text, bytea, integer) is
    'Operator: lets the bearer of a token act for one merchant over HTTP. digest: SHA-256 of the token''s text. rate_per_second: requests, null for the server''s default. Returns token_id. Errors: PL004, PL007.';

create function paylatch.revoke_api_token(token_id bigint) returns boolean
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    update paylatch.api_token t set revoked_at = paylatch.clock(), revoked_by = session_user
    where t.token_id = revoke_api_token.token_id and t.revoked_at is null;
    return found;
end $$;
comment on function paylatch.revoke_api_token(bigint) is 'Operator: ends a token at once and for good; false where it was not live. Error: PL007.';

create function paylatch.api_tokens()
    returns table (token_id bigint, merchant_id text, name text, rate_per_second integer, created_at timestamptz,
                   created_by text, revoked_at timestamptz, revoked_by text)
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    return query
    select t.token_id, t.merchant_id, t.name, t.rate_per_second, t.created_at, t.created_by, t.revoked_at, t.revoked_by
    from paylatch.api_token t order by t.token_id;
end $$;
comment on function paylatch.api_tokens() is 'Operator: every token ever made, without anything that could be used as one. Error: PL007.';

create function paylatch.authenticate(digest bytea)
    returns table (token_id bigint, merchant_id text, name text, rate_per_second integer)
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    return query
    select t.token_id, t.merchant_id, t.name, t.rate_per_second
    from paylatch.api_token t where t.digest = authenticate.digest and t.revoked_at is null;
end $$;
comment on function paylatch.authenticate(bytea) is
    'Whom a token speaks for, by the SHA-256 of its text; no row where it is unknown or revoked. Error: PL007.';

create function paylatch.api_is_open() returns boolean
    language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform paylatch.require_migrated();
    return not exists (select from paylatch.api_token);
end $$;
comment on function paylatch.api_is_open() is 'Whether no token was ever made, so that the API serves this machine alone, unasked. Error: PL007.';

create function paylatch.guard_token() returns trigger language plpgsql as $$
begin
    if tg_op = 'UPDATE' and old.revoked_at is null and new.revoked_at is not null
       and to_jsonb(new) - array['revoked_at', 'revoked_by'] = to_jsonb(old) - array['revoked_at', 'revoked_by'] then
        return new;
    end if;
    raise exception using errcode = '23514', message = 'paylatch rule 11: a token is made and revoked, nothing else',
        detail = jsonb_build_object('rule', 11, 'table', 'api_token', 'id', old.token_id)::text;
end $$;
comment on function paylatch.guard_token() is 'Row guard: refuses with 23514 any change of a token but its revocation, and its deletion. Upholds rule 11.';
